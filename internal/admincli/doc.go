// Package admincli holds the commands with which operators run tenants, keys,
// limits, SLO classes, prices, policies, usage and the audit log of a cloud.
// They are thin: each is one call of the admin REST API, and what they print
// with --json is its answer.
package admincli
