package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weirhq/weir/internal/enroll"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
)

// PathJoin is where a device joins.
const PathJoin = "/edge/v1/join"

// joinRequest and joinReply are the bodies of POST /edge/v1/join.
type joinRequest struct {
	Token string `json:"token"`
	CSR   string `json:"csr"` // PEM
}

type joinReply struct {
	Certificate string `json:"certificate"` // PEM
	CA          string `json:"ca"`          // PEM
	DeviceID    string `json:"device_id"`
	TenantID    string `json:"tenant_id"`
	SnapshotKey []byte `json:"snapshot_key"` // Ed25519 public key
}

// Join makes a device key, has the cloud certify it against the join token and
// saves the identity to dir. The token's secret is sent only to a server whose
// authority has the token's pin. The key is on disk before the request, so
// that a second try after a lost answer shows the same key. enroll.Temporary
// reports whether one is of use.
func Join(ctx context.Context, dir, cloudURL string, token tenants.JoinToken) (*Identity, error) {
	base, err := enroll.Base(cloudURL)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	keyPEM, key, err := pendingKey(dir)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("join: certificate request: %w", err)
	}
	request := joinRequest{Token: token.Reveal(), CSR: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))}
	var reply joinReply
	if err := enroll.Join(ctx, base, token.Pin, PathJoin, request, &reply); err != nil {
		if errors.Is(err, enroll.ErrRefused) {
			return nil, fmt.Errorf("the cloud refused the join token, ask the operator for a new one: %w", err)
		}
		return nil, fmt.Errorf("join: %w", err)
	}
	if err := enroll.CheckCA(reply.CA, token.Pin); err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	id := reply.identity(base.String(), keyPEM)
	if err := id.Save(dir); err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	_ = os.Remove(pendingPath(dir)) // a left-over is only ever reused for a new join
	return id, nil
}

func (r *joinReply) identity(cloudURL string, keyPEM []byte) *Identity {
	return &Identity{
		DeviceID: r.DeviceID, TenantID: r.TenantID, SnapshotKey: r.SnapshotKey, CloudURL: cloudURL,
		certPEM: []byte(r.Certificate), keyPEM: keyPEM, caPEM: []byte(r.CA),
	}
}

func pendingPath(dir string) string { return dir + ".pending-key.pem" }

// pendingKey returns the key of an earlier, unfinished join, or a new one.
func pendingKey(dir string) ([]byte, crypto.Signer, error) {
	path := pendingPath(dir)
	if raw, err := readPrivate(path); err == nil {
		if key, err := parseKey(raw); err == nil {
			return raw, key, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make device key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode device key: %w", err)
	}
	raw := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, err
	}
	return raw, key, pki.WriteSecret(path, raw)
}

func parseKey(raw []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, errors.New("no PEM key")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("not a PKCS#8 key")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("a key that cannot sign")
	}
	return signer, nil
}
