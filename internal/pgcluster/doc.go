// Package pgcluster runs a private PostgreSQL cluster: it finds the server's
// binaries, makes the cluster in Weir's data directory, and serves it on a Unix
// socket only. Postgres refuses to run as root, so a root caller's cluster
// belongs to an unprivileged user, and moves out of the data directory when
// that user may not enter it.
//
// The server lives no longer than its guard ("weir postgres-guard"), and the
// guard no longer than its parent.
package pgcluster
