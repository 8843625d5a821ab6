package tenants

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

const joinPrefix = "wj1."

// Pin is the SHA-256 of a certificate authority's SubjectPublicKeyInfo (DER).
// A device compares it before it sends the secret of its join token.
type Pin [sha256.Size]byte

// PinSPKI returns the pin of a DER-encoded SubjectPublicKeyInfo, which
// crypto/x509 gives as Certificate.RawSubjectPublicKeyInfo.
func PinSPKI(der []byte) Pin { return sha256.Sum256(der) }

// ParsePin reads the 43 characters of unpadded base64url that String writes.
func ParsePin(s string) (Pin, error) {
	var p Pin
	if len(s) != base64.RawURLEncoding.EncodedLen(len(p)) {
		return Pin{}, errors.New("a CA pin is 43 characters of base64url")
	}
	// Strict: two texts must not stand for one pin.
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != len(p) {
		return Pin{}, errors.New("a CA pin is 43 characters of base64url")
	}
	copy(p[:], b)
	return p, nil
}

// Matches reports whether p pins the DER-encoded SubjectPublicKeyInfo.
func (p Pin) Matches(der []byte) bool {
	o := PinSPKI(der)
	return subtle.ConstantTimeCompare(p[:], o[:]) == 1
}

// String returns the pin as unpadded base64url.
func (p Pin) String() string { return base64.RawURLEncoding.EncodeToString(p[:]) }

// MarshalText implements encoding.TextMarshaler.
func (p Pin) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Pin) UnmarshalText(b []byte) (err error) {
	*p, err = ParsePin(string(b))
	return err
}

// JoinToken lets one device join, "wj1.<id>.<secret>.<CA pin>".
type JoinToken struct {
	ID     string // 4 to 32 of a-z0-9
	Secret Secret // 32 to 64 of A-Za-z0-9
	Pin    Pin    // of the authority that will sign the device's certificate
}

// MintJoinToken makes a token with a new id and a new secret of 256 bits.
func MintJoinToken(pin Pin) (JoinToken, error) {
	id, err := randomText(lower, idLen)
	if err != nil {
		return JoinToken{}, err
	}
	sec, err := mintSecret(id)
	return JoinToken{id, sec, pin}, err
}

// ParseJoinToken reads "wj1.<id>.<secret>.<CA pin>". The error is ErrMalformed.
func ParseJoinToken(s string) (JoinToken, error) {
	bad := fmt.Errorf("%w: a join token looks like wj1.<id>.<secret>.<CA pin>", ErrMalformed)
	if len(s) > len(joinPrefix)+maxID+1+maxSecret+1+64 {
		return JoinToken{}, bad
	}
	rest, ok := strings.CutPrefix(s, joinPrefix)
	if !ok {
		return JoinToken{}, bad
	}
	parts := strings.SplitN(rest, ".", 4)
	if len(parts) != 3 || !within(parts[0], minID, maxID, isLower) || !within(parts[1], minSec, maxSecret, isAlnum) {
		return JoinToken{}, bad
	}
	pin, err := ParsePin(parts[2])
	if err != nil {
		return JoinToken{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return JoinToken{parts[0], NewSecret(parts[1]), pin}, nil
}

// Reveal returns the whole token, for its owner's eyes once.
func (t JoinToken) Reveal() string {
	return joinPrefix + t.ID + "." + t.Secret.Reveal() + "." + t.Pin.String()
}

// String returns the token without its secret.
func (t JoinToken) String() string {
	return joinPrefix + t.ID + "." + redacted + "." + t.Pin.String()
}

// Format implements fmt.Formatter, so that no verb reveals the secret.
func (t JoinToken) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(t.String())) }

// LogValue implements slog.LogValuer.
func (t JoinToken) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText implements encoding.TextMarshaler without the secret.
func (t JoinToken) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
