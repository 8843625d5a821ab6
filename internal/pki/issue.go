package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// DefaultLife is how long certificates are valid when Spec.Life is zero.
const DefaultLife = 365 * 24 * time.Hour

// Spec says whom a certificate is for.
type Spec struct {
	Peer
	// Hosts are the DNS names and IP addresses under which the holder serves.
	// Devices serve nobody and have none.
	Hosts []string
	Life  time.Duration // zero: DefaultLife; never beyond the authority's own
}

// LoopbackHosts are the names of a holder that serves this machine only.
func LoopbackHosts() []string { return []string{"localhost", "127.0.0.1", "::1"} }

// Issue makes a key and a certificate for it. The chain ends with the
// authority's certificate, because a joining device checks it by its pin.
func (a *Authority) Issue(s Spec) (tls.Certificate, error) {
	key, err := newKey()
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := a.sign(s, key.Public())
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw, a.cert.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// IssuePEM is Issue for files: the chain and the PKCS#8 key.
func (a *Authority) IssuePEM(s Spec) (chain, key []byte, err error) {
	c, err := a.Issue(s)
	if err != nil {
		return nil, nil, err
	}
	signer, _ := c.PrivateKey.(crypto.Signer)
	if key, err = encodeKey(signer); err != nil {
		return nil, nil, err
	}
	for _, der := range c.Certificate {
		chain = append(chain, encodeCert(der)...)
	}
	return chain, key, nil
}

// MaxCSR bounds a certificate request in bytes.
const MaxCSR = 8 << 10

// ErrBadCSR marks a certificate request that is refused.
var ErrBadCSR = errors.New("certificate request refused")

// SignCSR certifies the public key of a PEM certificate request for s. Names
// and extensions of the request are ignored. The error wraps ErrBadCSR when
// the request is at fault. The result is the PEM leaf, without the authority.
func (a *Authority) SignCSR(csr []byte, s Spec) ([]byte, error) {
	req, err := parseCSR(csr)
	if err != nil {
		return nil, err
	}
	leaf, err := a.sign(s, req.PublicKey)
	if err != nil {
		return nil, err
	}
	return encodeCert(leaf.Raw), nil
}

// HashCSR checks a certificate request as SignCSR does and returns the SHA-256
// of its public key (SPKI), by which a device is known again.
func HashCSR(csr []byte) ([sha256.Size]byte, error) {
	req, err := parseCSR(csr)
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	return sha256.Sum256(req.RawSubjectPublicKeyInfo), nil
}

func parseCSR(csr []byte) (*x509.CertificateRequest, error) {
	if len(csr) > MaxCSR {
		return nil, fmt.Errorf("%w: %d bytes are over the limit of %d", ErrBadCSR, len(csr), MaxCSR)
	}
	block, rest := pem.Decode(csr)
	if block == nil || block.Type != pemCSR || strings.TrimSpace(string(rest)) != "" {
		return nil, fmt.Errorf("%w: want one PEM block of type %s", ErrBadCSR, pemCSR)
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: not a PKCS#10 request", ErrBadCSR)
	}
	if err := checkPublic(req.PublicKey); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadCSR, err)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: its signature does not match its key", ErrBadCSR)
	}
	return req, nil
}

// NewCSR makes a key and a certificate request for it, both PEM.
func NewCSR() (csr, key []byte, err error) {
	if key, err = NewKey(); err != nil {
		return nil, nil, err
	}
	csr, err = CSR(key)
	return csr, key, err
}

// NewKey makes a private key, PEM.
func NewKey() ([]byte, error) {
	k, err := newKey()
	if err != nil {
		return nil, err
	}
	return encodeKey(k)
}

// CSR makes a certificate request for a PEM key. The request names nobody: the
// authority decides who its sender is.
func CSR(key []byte) ([]byte, error) {
	k, err := decodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, k)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: der}), nil
}

func (a *Authority) sign(s Spec, pub crypto.PublicKey) (*x509.Certificate, error) {
	t, err := a.template(s)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, pub, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return leaf, nil
}

func (a *Authority) template(s Spec) (*x509.Certificate, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("issue certificate: %w", err)
	}
	if s.Role == RoleEdge && len(s.Hosts) > 0 {
		return nil, errors.New("issue certificate: a device has no host names")
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	life := s.Life
	if life <= 0 {
		life = DefaultLife
	}
	now := a.now()
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Organization: []string{"Weir"}, CommonName: s.Name},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(life),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:                  s.uris(),
	}
	if t.NotAfter.After(a.cert.NotAfter) {
		t.NotAfter = a.cert.NotAfter
	}
	if s.Role != RoleEdge {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return t, addHosts(t, s.Hosts)
}

func addHosts(t *x509.Certificate, hosts []string) error {
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
			continue
		}
		if !validHost(h) {
			return fmt.Errorf("issue certificate: %.70q is neither a host name nor an IP address", h)
		}
		t.DNSNames = append(t.DNSNames, h)
	}
	return nil
}

// validHost allows DNS names, also with one leading "*." label.
func validHost(h string) bool { return ValidDNSName(strings.TrimPrefix(h, "*.")) }

// ValidDNSName reports whether h is a DNS name, and no wildcard.
func ValidDNSName(h string) bool {
	if h == "" || len(h) > 253 {
		return false
	}
	for _, label := range strings.Split(h, ".") {
		if !ValidName(label) || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return true
}
