// Package ledger keeps the usage ledger in PostgreSQL: one row per attempt,
// written exactly once however often it is sent. Store writes and reads rows;
// Buffer takes rows on the path of a request without waiting for the database
// and writes them in batches.
package ledger
