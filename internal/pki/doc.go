// Package pki is Weir's small public key infrastructure: a development
// certificate authority in a secrets directory, certificates whose SAN URI
// says what their holder is, and the TLS configurations that check it.
//
// A holder's role stands in the URI weir://role/ROLE/NAME; a device's
// certificate also names its tenant in weir://tenant/UUID. Nothing of a
// certificate request but its public key ever reaches a certificate.
package pki
