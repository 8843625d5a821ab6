// Package tenants holds what every node knows about tenants: their
// credentials, the signed snapshot from which keys are checked without a
// database, and the row that is written to the usage ledger for each attempt.
//
// It imports the standard library only. Secrets are carried in [Secret],
// which no print, log or JSON call reveals; only hashes are ever stored.
package tenants
