package pki

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/weirhq/weir/tenants"
)

// Files of an authority inside a secrets directory.
const (
	CAFile    = "ca.pem"
	CAKeyFile = "ca-key.pem"
)

const (
	caLife = 10 * 365 * 24 * time.Hour
	// backdate lets a peer whose clock is behind accept a fresh certificate.
	backdate = time.Hour
)

// Authority signs certificates. It is safe for concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	now  func() time.Time
}

// OpenAuthority loads the authority of a secrets directory. An empty or
// missing directory gets a new authority; processes that start together get
// the same one. Operators may put their own ca.pem and ca-key.pem there.
func OpenAuthority(dir string) (*Authority, error) {
	a := &Authority{now: time.Now}
	if err := withLock(dir, func() error { return a.open(dir) }); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	return a, nil
}

func (a *Authority) open(dir string) error {
	certPath, keyPath := filepath.Join(dir, CAFile), filepath.Join(dir, CAKeyFile)
	haveCert, err := exists(certPath)
	if err != nil {
		return err
	}
	haveKey, err := exists(keyPath)
	if err != nil {
		return err
	}
	if haveCert && !haveKey {
		return fmt.Errorf("%s is there but %s is not: restore it from its backup, or use an empty secrets directory", certPath, CAKeyFile)
	}
	if !haveKey {
		if err := a.create(keyPath); err != nil {
			return err
		}
	} else if err := a.loadKey(keyPath); err != nil {
		return err
	}
	if !haveCert { // new, or a crash came between the two files
		return a.selfSign(certPath)
	}
	return a.loadCert(certPath)
}

func (a *Authority) create(keyPath string) error {
	k, err := newKey()
	if err != nil {
		return err
	}
	a.key = k
	b, err := encodeKey(k)
	if err != nil {
		return err
	}
	return WriteSecret(keyPath, b)
}

func (a *Authority) loadKey(path string) error {
	b, err := ReadSecret(path)
	if err != nil {
		return err
	}
	a.key, err = decodeKey(b)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (a *Authority) loadCert(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	certs, err := parseCerts(b)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	c := certs[0]
	switch {
	case !c.IsCA || !c.BasicConstraintsValid || c.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("%s: not the certificate of an authority", path)
	case !sameKey(c.PublicKey, a.key.Public()):
		return fmt.Errorf("%s does not belong to %s", path, CAKeyFile)
	case a.now().After(c.NotAfter):
		return fmt.Errorf("%s expired on %s", path, c.NotAfter.Format(time.DateOnly))
	}
	a.cert = c
	return nil
}

func (a *Authority) selfSign(path string) error {
	serial, err := newSerial()
	if err != nil {
		return err
	}
	now := a.now()
	t := &x509.Certificate{
		SerialNumber: serial,
		// The serial in the name keeps two authorities apart in a trust store.
		Subject:               pkix.Name{Organization: []string{"Weir"}, CommonName: "Weir CA " + hex.EncodeToString(serial.Bytes()[:4])},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, a.key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	return WriteSecret(path, a.CertPEM())
}

// CertPEM returns the authority's own certificate.
func (a *Authority) CertPEM() []byte { return encodeCert(a.cert.Raw) }

// Pool returns a pool that trusts this authority and no other.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// Pin returns the authority's pin, as join tokens carry it.
func (a *Authority) Pin() tenants.Pin { return tenants.PinSPKI(a.cert.RawSubjectPublicKeyInfo) }

// newSerial returns a positive number of 127 random bits.
func newSerial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	b[0] = b[0]&0x7f | 0x40 // positive, and always 16 bytes long
	return new(big.Int).SetBytes(b[:]), nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: der})
}

// parseCerts reads one or more PEM certificates.
func parseCerts(b []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		block, b = pem.Decode(b)
		if block == nil {
			break
		}
		if block.Type != pemCert {
			return nil, fmt.Errorf("want PEM blocks of type %s only", pemCert)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse certificate: %w", err)
		}
		out = append(out, c)
	}
	if len(out) == 0 || len(bytes.TrimSpace(b)) > 0 {
		return nil, errors.New("not a PEM file of certificates")
	}
	return out, nil
}
