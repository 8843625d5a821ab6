// Package identity is who an edge node is to the cloud: the device key that
// never leaves it, the certificate and tenant it got when it joined, and the
// keys by which it knows its cloud. It is kept in one folder that is written
// as a whole or not at all.
package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/weirhq/weir/internal/pki"
)

// ErrNone says that the folder holds no identity: the device has not joined.
var ErrNone = errors.New("this device has not joined a cloud")

// Files of an identity's folder.
const (
	fileKey  = "device-key.pem"
	fileCert = "device.pem"
	fileCA   = "ca.pem"
	fileMeta = "identity.json"
)

// Identity is a joined device.
type Identity struct {
	DeviceID string
	TenantID string
	CloudURL string
	// SnapshotKey verifies the snapshots of this device's tenant.
	SnapshotKey ed25519.PublicKey
	NotAfter    time.Time // of the certificate

	certPEM, keyPEM, caPEM []byte
}

type meta struct {
	DeviceID    string `json:"device_id"`
	TenantID    string `json:"tenant_id"`
	CloudURL    string `json:"cloud_url"`
	SnapshotKey []byte `json:"snapshot_key"`
}

// TLS returns the client configuration for calls to this device's cloud: its
// CA and no other, a gateway's role, and the device's certificate.
func (id *Identity) TLS() (*tls.Config, error) {
	holder, err := pki.ParseStatic(id.certPEM, id.keyPEM)
	if err != nil {
		return nil, fmt.Errorf("device identity: %w", err)
	}
	pool, err := pki.ParsePool(id.caPEM)
	if err != nil {
		return nil, fmt.Errorf("device identity: CA: %w", err)
	}
	return pki.ClientConfig(holder, pool, pki.RoleGateway), nil
}

// Load reads the identity of a folder. ErrNone when there is none.
func Load(dir string) (*Identity, error) {
	raw, err := os.ReadFile(filepath.Join(dir, fileMeta))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("device identity: %w", err)
	}
	var m meta
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return nil, fmt.Errorf("device identity: %s: %w", fileMeta, err)
	}
	id := &Identity{DeviceID: m.DeviceID, TenantID: m.TenantID, CloudURL: m.CloudURL, SnapshotKey: m.SnapshotKey}
	for _, f := range []struct {
		name string
		dst  *[]byte
	}{{fileKey, &id.keyPEM}, {fileCert, &id.certPEM}, {fileCA, &id.caPEM}} {
		if *f.dst, err = readPrivate(filepath.Join(dir, f.name)); err != nil {
			return nil, fmt.Errorf("device identity: %w", err)
		}
	}
	return id, id.check()
}

// check verifies that the parts belong together.
func (id *Identity) check() error {
	if len(id.SnapshotKey) != ed25519.PublicKeySize {
		return errors.New("device identity: the snapshot key is not an Ed25519 public key")
	}
	pair, err := pki.ParseStatic(id.certPEM, id.keyPEM)
	if err != nil {
		return fmt.Errorf("device identity: %w", err)
	}
	peer, err := pki.Identity(pair.Leaf)
	if err != nil {
		return fmt.Errorf("device identity: %w", err)
	}
	if peer.Role != pki.RoleEdge || peer.Name != id.DeviceID || peer.Tenant != id.TenantID {
		return fmt.Errorf("device identity: the certificate is for %s %s of tenant %s, not for device %s of tenant %s",
			peer.Role, peer.Name, peer.Tenant, id.DeviceID, id.TenantID)
	}
	if _, err := pki.ParsePool(id.caPEM); err != nil {
		return fmt.Errorf("device identity: CA: %w", err)
	}
	id.NotAfter = pair.Leaf.NotAfter
	return nil
}

// Save writes the identity to dir, which must not exist: a folder beside it
// is filled and renamed, so that a crash leaves no half identity.
func (id *Identity) Save(dir string) error {
	if err := id.check(); err != nil {
		return err
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return fmt.Errorf("save device identity: %w", err)
	}
	tmp, err := os.MkdirTemp(parent, ".identity-*") // MkdirTemp makes it 0700
	if err != nil {
		return fmt.Errorf("save device identity: %w", err)
	}
	defer os.RemoveAll(tmp)
	m, err := json.MarshalIndent(meta{id.DeviceID, id.TenantID, id.CloudURL, id.SnapshotKey}, "", "  ")
	if err != nil {
		return fmt.Errorf("save device identity: %w", err)
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{fileKey, id.keyPEM}, {fileCert, id.certPEM}, {fileCA, id.caPEM}, {fileMeta, m}} {
		if err := pki.WriteSecret(filepath.Join(tmp, f.name), f.data); err != nil {
			return fmt.Errorf("save device identity: %w", err)
		}
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("save device identity: %w", err)
	}
	return nil
}

// readPrivate refuses a file that other users may read: its key is no secret.
func readPrivate(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s is open to other users (mode %04o): chmod 600 it", path, st.Mode().Perm())
	}
	const most = 1 << 20
	if st.Size() > most {
		return nil, fmt.Errorf("%s has %d bytes: it is not a key or certificate", path, st.Size())
	}
	return os.ReadFile(path)
}
