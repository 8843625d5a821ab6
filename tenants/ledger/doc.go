// Package ledger keeps the usage ledger in PostgreSQL: one row per attempt,
// written exactly once however often it is sent, with sums by minute and by
// hour in the same transaction. Package report reads what is written here.
package ledger
