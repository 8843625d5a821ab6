// Package uplink carries an edge node's requests to the cloud: over HTTP/3 on
// one long-lived QUIC connection with mutual TLS, or over HTTP/2 on TCP while
// UDP does not get through. A leg counts as up only after a whole request and
// answer went over it, because a QUIC handshake succeeds before the server has
// looked at the client's certificate. 0-RTT is never used.
package uplink
