// Package member makes a worker a member of a cloud's pools. With a join token
// it gets a certificate of the cloud's authority, whose key never leaves the
// worker's folder; with the certificate it registers its process, sends
// heartbeats, renews the certificate and leaves. The cloud's side is in
// cloud/control; both use the types of wire.go.
package member
