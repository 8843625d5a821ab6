// Package control is the control plane of a cloud: it holds the newest
// snapshot of tenants and keys for the gateway, lets devices join, gives them
// their tenant's signed snapshot, takes their usage, and serves operators
// under /admin/v1.
//
// Everything that requests need is in memory. With the database away known
// keys work and ledger rows are kept; only changes and joins have to wait.
package control
