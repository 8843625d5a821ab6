package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"
)

const tenantID = "0190c9a4-7f7e-7000-8000-00000000000a"

var device = Peer{Role: RoleEdge, Name: "0190c9a4-7f7e-7000-8000-0000000000d1", Tenant: tenantID}

func TestSignCSRTakesOnlyTheKey(t *testing.T) {
	a := authority(t)
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	// The request asks for all it must not get.
	u, _ := url.Parse("weir://role/gateway/g")
	csr := request(t, key, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "admin"}, DNSNames: []string{"example.com"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, URIs: []*url.URL{u},
	})
	b, err := a.SignCSR(csr, Spec{Peer: device, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c := leafOf(t, b)
	if h, err := HashCSR(csr); err != nil || h != sha256.Sum256(c.RawSubjectPublicKeyInfo) {
		t.Errorf("hash %x, %v", h, err)
	}
	p, err := Identity(c)
	if err != nil {
		t.Fatal(err)
	}
	if p != device || c.Subject.CommonName != device.Name {
		t.Errorf("identity %+v, CN %q", p, c.Subject.CommonName)
	}
	if len(c.DNSNames)+len(c.IPAddresses)+len(c.EmailAddresses) > 0 || c.IsCA || len(c.URIs) != 2 {
		t.Errorf("the request reached the certificate: %v %v %v", c.DNSNames, c.IPAddresses, c.URIs)
	}
	if len(c.ExtKeyUsage) != 1 || c.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("usages %v", c.ExtKeyUsage)
	}
}

func TestSignCSRRefuses(t *testing.T) {
	a := authority(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good, _, err := NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(good)
	forged := append([]byte(nil), block.Bytes...)
	forged[len(forged)-3] ^= 1
	for name, csr := range map[string][]byte{
		"empty":     nil,
		"text":      []byte("hello"),
		"two":       append(append([]byte(nil), good...), good...),
		"too big":   []byte(strings.Repeat("x", MaxCSR+1)),
		"cert":      a.CertPEM(),
		"RSA":       request(t, rsaKey, &x509.CertificateRequest{}),
		"P-224":     request(t, p224, &x509.CertificateRequest{}),
		"forged":    pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: forged}),
		"truncated": pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: block.Bytes[:40]}),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := a.SignCSR(csr, Spec{Peer: device}); !errors.Is(err, ErrBadCSR) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestIssueRefusesBadSpecs(t *testing.T) {
	a := authority(t)
	for name, s := range map[string]Spec{
		"no role":          {Peer: Peer{Name: "x"}},
		"unknown role":     {Peer: Peer{Role: "root", Name: "x"}},
		"no name":          {Peer: Peer{Role: RoleWorker}},
		"slash":            {Peer: Peer{Role: RoleWorker, Name: "a/b"}},
		"long name":        {Peer: Peer{Role: RoleWorker, Name: strings.Repeat("x", 64)}},
		"edge, no tenant":  {Peer: Peer{Role: RoleEdge, Name: "x"}},
		"edge, bad tenant": {Peer: Peer{Role: RoleEdge, Name: "x", Tenant: "y"}},
		"worker, tenant":   {Peer: Peer{Role: RoleWorker, Name: "x", Tenant: tenantID}},
		"edge with host":   {Peer: device, Hosts: []string{"localhost"}},
		"bad host":         {Peer: Peer{Role: RoleWorker, Name: "x"}, Hosts: []string{"a b"}},
		"bad label":        {Peer: Peer{Role: RoleWorker, Name: "x"}, Hosts: []string{"-a.example"}},
	} {
		if _, err := a.Issue(s); err == nil {
			t.Errorf("%s: issued", name)
		}
	}
}

func TestIdentity(t *testing.T) {
	for _, tc := range []struct {
		uris []string
		cn   string
		want Peer
		bad  bool
	}{
		{uris: []string{"weir://role/worker/w1"}, want: Peer{Role: RoleWorker, Name: "w1"}},
		{uris: []string{"weir://role/edge", "weir://tenant/" + tenantID}, cn: "d", want: Peer{Role: RoleEdge, Name: "d", Tenant: tenantID}},
		{uris: []string{"https://example.com/", "weir://role/gateway/g"}, want: Peer{Role: RoleGateway, Name: "g"}},
		{bad: true},
		{uris: []string{"weir://role/worker"}, bad: true},
		{uris: []string{"weir://role/worker/a/b"}, bad: true},
		{uris: []string{"weir://role/worker/a", "weir://role/gateway/a"}, bad: true},
		{uris: []string{"weir://role/worker/a", "weir://tenant/" + tenantID}, bad: true},
		{uris: []string{"weir://role/edge/a", "weir://tenant/" + strings.ToUpper(tenantID)}, bad: true},
		{uris: []string{"weir://role/worker/a", "weir://scope/all"}, bad: true},
		{uris: []string{"weir://role/owner/a"}, bad: true},
	} {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: tc.cn}}
		for _, s := range tc.uris {
			u, err := url.Parse(s)
			if err != nil {
				t.Fatal(err)
			}
			c.URIs = append(c.URIs, u)
		}
		got, err := Identity(c)
		if (err != nil) != tc.bad || got != tc.want {
			t.Errorf("%v: got %+v, %v", tc.uris, got, err)
		}
	}
	if _, err := PeerOf(nil); !errors.Is(err, ErrNoCertificate) {
		t.Errorf("no connection: %v", err)
	}
}

// request signs a certificate request with any kind of key.
func request(t *testing.T, key crypto.Signer, r *x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, r, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: der})
}

func FuzzSignCSR(f *testing.F) {
	a, err := OpenAuthority(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	good, _, err := NewCSR()
	if err != nil {
		f.Fatal(err)
	}
	block, _ := pem.Decode(good)
	f.Add(block.Bytes)
	f.Add([]byte{0x30, 0x80})
	f.Fuzz(func(t *testing.T, der []byte) {
		b, err := a.SignCSR(pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: der}), Spec{Peer: device})
		if err != nil {
			if !errors.Is(err, ErrBadCSR) {
				t.Fatalf("not the request's fault: %v", err)
			}
			return
		}
		if p, err := Identity(leafOf(t, b)); err != nil || p != device {
			t.Fatalf("identity %+v, %v", p, err)
		}
	})
}
