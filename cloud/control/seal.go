package control

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
)

// sealer hides kept answers from the database: they may show a secret, of
// which it has only hashes. All gateways that share the secrets directory can
// open what one of them has sealed.
type sealer struct{ aead cipher.AEAD }

func newSealer(key ed25519.PrivateKey) (sealer, error) {
	k, err := hkdf.Key(sha256.New, key.Seed(), nil, "weir kept answers v1", 32)
	if err != nil {
		return sealer{}, fmt.Errorf("derive key for kept answers: %w", err)
	}
	block, err := aes.NewCipher(k)
	if err != nil {
		return sealer{}, fmt.Errorf("derive key for kept answers: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return sealer{}, fmt.Errorf("derive key for kept answers: %w", err)
	}
	return sealer{aead}, nil
}

func (s sealer) seal(plain []byte) ([]byte, error) { return s.aead.Seal(nil, nil, plain, nil), nil }

func (s sealer) open(sealed []byte) ([]byte, error) {
	b, err := s.aead.Open(nil, nil, sealed, nil)
	if err != nil {
		return nil, errors.New("not sealed with this cloud's key")
	}
	return b, nil
}
