package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/weirhq/weir/tenants"
)

// Holder is what a TLS end shows of itself: a Source, or Static for files.
type Holder interface {
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error)
}

// Static is a Holder of one certificate that does not change.
type Static tls.Certificate

// GetCertificate implements Holder.
func (s *Static) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return (*tls.Certificate)(s), nil
}

// GetClientCertificate implements Holder.
func (s *Static) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return (*tls.Certificate)(s), nil
}

// LoadStatic reads a PEM chain and its key. Errors name the files only.
func LoadStatic(certFile, keyFile string) (*Static, error) {
	chain, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	key, err := ReadSecret(keyFile)
	if err != nil {
		return nil, fmt.Errorf("load key: %w", err)
	}
	return ParseStatic(chain, key)
}

// ParseStatic is LoadStatic from memory.
func ParseStatic(chain, key []byte) (*Static, error) {
	c, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	return (*Static)(&c), nil
}

// LoadPool reads the PEM certificates of the authorities to trust.
func LoadPool(file string) (*x509.CertPool, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	p, err := ParsePool(b)
	if err != nil {
		return nil, fmt.Errorf("load CA: %s: %w", file, err)
	}
	return p, nil
}

// ParsePool is LoadPool from memory.
func ParsePool(b []byte) (*x509.CertPool, error) {
	certs, err := parseCerts(b)
	if err != nil {
		return nil, err
	}
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p, nil
}

// ServerConfig is for a port that serves applications and devices alike: a
// client certificate is verified if one is given. See PeerOf.
func ServerConfig(h Holder, clients *x509.CertPool) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: h.GetCertificate,
		ClientCAs:      clients,
		ClientAuth:     tls.VerifyClientCertIfGiven,
	}
}

// MutualConfig is for a port that only certificates with one of the roles may
// use. No byte of a request is read from anybody else.
func MutualConfig(h Holder, clients *x509.CertPool, roles ...Role) *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		GetCertificate:   h.GetCertificate,
		ClientCAs:        clients,
		ClientAuth:       tls.RequireAndVerifyClientCert,
		VerifyConnection: requireRole(roles),
	}
}

// ClientConfig is for calls to a server with one of the roles, under its
// host's name. h may be nil for a client without a certificate; without roles
// any certificate of the authorities that bears the name will do.
func ClientConfig(h Holder, servers *x509.CertPool, roles ...Role) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: servers}
	if h != nil {
		c.GetClientCertificate = h.GetClientCertificate
	}
	if len(roles) > 0 {
		c.VerifyConnection = requireRole(roles)
	}
	return c
}

// RoleClientConfig is ClientConfig for peers that are known by their role and
// not by a host name, as workers that hand KV to each other are: the chain and
// the role are checked, the name is not.
func RoleClientConfig(h Holder, servers *x509.CertPool, roles ...Role) *tls.Config {
	c := ClientConfig(h, servers)
	c.InsecureSkipVerify = true // VerifyConnection below does it, but for the name
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		leaf, err := verifyChain(cs, servers, "")
		if err != nil {
			return err
		}
		return checkRole(leaf, roles)
	}
	return c
}

// JoinConfig is for a device or a worker that knows nothing but the pin of the
// authority: the server's chain must lead to a CA certificate with that pin, and
// its leaf must be a gateway's and bear host (a DNS name or an IP address). The
// handshake fails otherwise, before any byte of a request is sent.
func JoinConfig(pin tenants.Pin, host string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         host,
		InsecureSkipVerify: true, // VerifyConnection below does it
		VerifyConnection: func(cs tls.ConnectionState) error {
			if host == "" {
				return errors.New("join: no host name to check")
			}
			roots := x509.NewCertPool()
			found := false
			for _, c := range cs.PeerCertificates {
				if c.IsCA && pin.Matches(c.RawSubjectPublicKeyInfo) {
					roots.AddCert(c)
					found = true
				}
			}
			if !found {
				return errors.New("join: the server's authority does not have the pin of the join token: wrong address, or somebody is in between")
			}
			leaf, err := verifyChain(cs, roots, host)
			if err == nil {
				err = checkRole(leaf, []Role{RoleGateway})
			}
			if err != nil {
				return fmt.Errorf("join: %w", err)
			}
			return nil
		},
	}
}

func verifyChain(cs tls.ConnectionState, roots *x509.CertPool, host string) (*x509.Certificate, error) {
	if len(cs.PeerCertificates) == 0 {
		return nil, ErrNoCertificate
	}
	o := x509.VerifyOptions{
		Roots: roots, DNSName: host, Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, c := range cs.PeerCertificates[1:] {
		o.Intermediates.AddCert(c)
	}
	leaf := cs.PeerCertificates[0]
	if _, err := leaf.Verify(o); err != nil {
		return nil, fmt.Errorf("verify server certificate: %w", err)
	}
	return leaf, nil
}

func requireRole(roles []Role) func(tls.ConnectionState) error {
	return func(cs tls.ConnectionState) error {
		if len(cs.VerifiedChains) == 0 {
			return ErrNoCertificate
		}
		return checkRole(cs.VerifiedChains[0][0], roles)
	}
}

func checkRole(leaf *x509.Certificate, roles []Role) error {
	p, err := Identity(leaf)
	if err != nil {
		return err
	}
	if !slices.Contains(roles, p.Role) {
		return fmt.Errorf("peer has role %s, want %v", p.Role, roles)
	}
	return nil
}
