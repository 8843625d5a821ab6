// Package spool keeps usage rows on disk between the moment an attempt is
// admitted and the moment its row is in the ledger.
//
// Admissions and settlements are appended to a memory-mapped segment file. A
// row is safe from the death of the process as soon as Admit or Settle has
// returned, because the pages belong to the kernel; a flush every 100 ms makes
// it safe from the death of the machine. Drain hands settlements out oldest
// first, and a segment is deleted when all of it has been delivered.
//
// An admission carries the row that is true if nothing else is ever heard of
// the attempt: outcome gateway_lost, usage estimated. Open turns each
// admission without a settlement into that row. Delivery is at least once: who
// receives rows drops those whose attempt id it has.
//
// A full disk cannot lose a settlement: room for it is set aside when its
// attempt is admitted, and Admit refuses before that room runs out.
//
// Gateways and edge nodes use the same files; a node's directory belongs to
// one process at a time.
package spool
