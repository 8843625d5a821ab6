package tenants

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxSnapshotBytes bounds a signed snapshot on the wire and on disk.
const MaxSnapshotBytes = 64 << 20

// ErrSnapshotSignature marks a snapshot that no trusted key has signed.
var ErrSnapshotSignature = errors.New("snapshot is not signed by a trusted key")

// signContext keeps a signature over a snapshot from meaning anything else.
const signContext = "weir snapshot v1\n"

// Envelope carries the exact bytes that were signed, so that no two parties
// need to agree on a canonical JSON.
type Envelope struct {
	Payload   []byte `json:"payload"`   // the snapshot's JSON, base64 on the wire
	Signature []byte `json:"signature"` // Ed25519 over signContext and Payload
	KeyID     string `json:"key_id"`    // SignerID of the public key
}

// SignerID names an Ed25519 public key: 16 hexadecimal digits of its SHA-256.
func SignerID(pub ed25519.PublicKey) string {
	sum := sha256.Sum256(pub)
	return hex.EncodeToString(sum[:8])
}

// Sign encodes the snapshot and returns the JSON of its signed envelope.
func (s *Snapshot) Sign(key ed25519.PrivateKey) ([]byte, error) {
	return seal(s, signContext, key)
}

// seal encodes v and returns the JSON of its envelope, signed for one purpose.
func seal(v any, context string, key ed25519.PrivateKey) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	pub, _ := key.Public().(ed25519.PublicKey)
	return json.Marshal(Envelope{
		Payload:   payload,
		Signature: ed25519.Sign(key, append([]byte(context), payload...)),
		KeyID:     SignerID(pub),
	})
}

// Verify reads a signed envelope made by Sign and returns its snapshot if one
// of the trusted keys, by SignerID, has signed it. The error wraps
// ErrSnapshotSignature if none has. Verify does not look at the expiry, which
// Index.Lookup does, nor at the version: the caller refuses to go back.
func Verify(envelope []byte, trusted map[string]ed25519.PublicKey) (*Snapshot, error) {
	if len(envelope) > MaxSnapshotBytes {
		return nil, fmt.Errorf("snapshot of %d bytes is over the limit of %d", len(envelope), MaxSnapshotBytes)
	}
	s := new(Snapshot)
	if err := open(envelope, signContext, trusted, s); err != nil {
		return nil, err
	}
	return s, nil
}

// open reads into v what seal has made for the same purpose.
func open(envelope []byte, context string, trusted map[string]ed25519.PublicKey, v any) error {
	var e Envelope
	if err := decodeStrict(envelope, &e); err != nil {
		return fmt.Errorf("decode envelope: %w", err)
	}
	pub, ok := trusted[e.KeyID]
	if !ok || len(pub) != ed25519.PublicKeySize {
		return fmt.Errorf("%w: key_id %.16q is not trusted", ErrSnapshotSignature, e.KeyID)
	}
	if !ed25519.Verify(pub, append([]byte(context), e.Payload...), e.Signature) {
		return fmt.Errorf("%w: signature does not match", ErrSnapshotSignature)
	}
	// Signed by us: an unknown member is a newer cloud's, not an attacker's.
	if err := json.Unmarshal(e.Payload, v); err != nil {
		return fmt.Errorf("decode what was signed: %w", err)
	}
	return nil
}

// decodeStrict reads exactly one JSON value without unknown members.
func decodeStrict(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("data after the JSON value")
	}
	return nil
}
