package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
)

const (
	pemCert = "CERTIFICATE"
	pemKey  = "PRIVATE KEY"
	pemCSR  = "CERTIFICATE REQUEST"

	snapshotKeyFile = "snapshot-key.pem"
)

// P-256 rather than Ed25519 for certificates: every TLS client accepts it.
func newKey() (*ecdsa.PrivateKey, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return k, nil
}

func encodeKey(k crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// decodeKey reads one PKCS#8 key. Its errors never hold key material.
func decodeKey(b []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != pemKey {
		return nil, errors.New("no PEM block of type PRIVATE KEY (PKCS#8)")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("not a PKCS#8 private key")
	}
	s, ok := k.(crypto.Signer)
	if !ok {
		return nil, errors.New("a key that cannot sign")
	}
	return s, checkPublic(s.Public())
}

// checkPublic allows the keys that Weir issues certificates for.
func checkPublic(pub crypto.PublicKey) error {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() {
			return nil
		}
	case ed25519.PublicKey:
		if len(k) == ed25519.PublicKeySize {
			return nil
		}
	}
	return errors.New("key type not allowed: want ECDSA P-256, ECDSA P-384 or Ed25519")
}

func sameKey(a, b crypto.PublicKey) bool {
	eq, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && eq.Equal(b)
}

// OpenSnapshotKey returns the Ed25519 key with which snapshots for devices are
// signed, from dir/snapshot-key.pem. It makes one on first use.
func OpenSnapshotKey(dir string) (ed25519.PrivateKey, error) {
	path := filepath.Join(dir, snapshotKeyFile)
	var key ed25519.PrivateKey
	err := withLock(dir, func() error {
		there, err := exists(path)
		if err != nil {
			return err
		}
		if !there {
			key, err = makeSnapshotKey(path)
			return err
		}
		b, err := ReadSecret(path)
		if err != nil {
			return err
		}
		s, err := decodeKey(b)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		k, ok := s.(ed25519.PrivateKey)
		if !ok {
			return fmt.Errorf("%s: want an Ed25519 key", path)
		}
		key = k
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("snapshot key: %w", err)
	}
	return key, nil
}

func makeSnapshotKey(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	b, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return key, WriteSecret(path, b)
}
