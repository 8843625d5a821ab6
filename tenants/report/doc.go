// Package report answers questions about usage: sums from the rollups, exact
// to the microsecond at both ends, single attempts page by page, and what is
// left of budgets. It reads through whatever transaction it is given, so that
// row-level security holds for it too.
package report
