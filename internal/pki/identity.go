package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/google/uuid"
)

// Role is what the holder of a certificate is.
type Role string

// The roles that certificates are issued for.
const (
	RoleGateway Role = "gateway"
	RoleWorker  Role = "worker"
	RoleEdge    Role = "edge"
)

// Valid reports whether r is one of the roles above.
func (r Role) Valid() bool { return r == RoleGateway || r == RoleWorker || r == RoleEdge }

// ErrNoCertificate says that the peer of a connection has shown no
// certificate, or none that was verified.
var ErrNoCertificate = errors.New("no verified client certificate")

// Peer is who a certificate speaks for.
type Peer struct {
	Role   Role
	Name   string // instance name, or device id
	Tenant string // UUID; set for RoleEdge and for no other
}

const (
	uriScheme = "weir"
	maxName   = 63
)

// Identity reads the role URI, and for a device the tenant URI, of a
// certificate. It does not verify the certificate: see PeerOf. It fails unless
// there is exactly one role.
func Identity(cert *x509.Certificate) (Peer, error) {
	var p Peer
	for _, u := range cert.URIs {
		if u.Scheme != uriScheme {
			continue
		}
		if err := p.read(u); err != nil {
			return Peer{}, fmt.Errorf("certificate: %w", err)
		}
	}
	if p.Name == "" {
		p.Name = cert.Subject.CommonName
	}
	if err := p.check(); err != nil {
		return Peer{}, fmt.Errorf("certificate: %w", err)
	}
	return p, nil
}

// PeerOf returns the identity of the verified client or server certificate of
// a connection. The error is ErrNoCertificate where there is none.
func PeerOf(cs *tls.ConnectionState) (Peer, error) {
	if cs == nil || len(cs.VerifiedChains) == 0 || len(cs.VerifiedChains[0]) == 0 {
		return Peer{}, ErrNoCertificate
	}
	return Identity(cs.VerifiedChains[0][0])
}

func (p *Peer) read(u *url.URL) error {
	path := strings.TrimPrefix(u.Path, "/")
	switch u.Host {
	case "role":
		if p.Role != "" {
			return errors.New("more than one role")
		}
		role, name, _ := strings.Cut(path, "/")
		p.Role, p.Name = Role(role), name
	case "tenant":
		if p.Tenant != "" {
			return errors.New("more than one tenant")
		}
		p.Tenant = path
	default:
		return fmt.Errorf("unknown URI kind %.32q", u.Host)
	}
	return nil
}

func (p *Peer) check() error {
	switch {
	case p.Role == "":
		return errors.New("no role: it was not issued by a Weir authority")
	case !p.Role.Valid():
		return fmt.Errorf("unknown role %.32q", string(p.Role))
	case !ValidName(p.Name):
		return fmt.Errorf("name %.70q is not 1 to %d of a-z A-Z 0-9 . _ -", p.Name, maxName)
	case p.Role == RoleEdge && !validUUID(p.Tenant):
		return errors.New("a device's certificate needs a tenant (UUID)")
	case p.Role != RoleEdge && p.Tenant != "":
		return fmt.Errorf("role %s has no tenant", p.Role)
	}
	return nil
}

func (p *Peer) uris() []*url.URL {
	out := []*url.URL{{Scheme: uriScheme, Host: "role", Path: "/" + string(p.Role) + "/" + p.Name}}
	if p.Tenant != "" {
		out = append(out, &url.URL{Scheme: uriScheme, Host: "tenant", Path: "/" + p.Tenant})
	}
	return out
}

func validUUID(s string) bool {
	id, err := uuid.Parse(s)
	return err == nil && id.String() == s
}

// ValidName reports whether a certificate may bear the name.
func ValidName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		ok := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
		if !ok {
			return false
		}
	}
	return true
}
