package tenants

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is a string that never prints: fmt, slog and encoding/json all show
// "[redacted]". Reveal is the only way to the text. The text is held behind a
// pointer because fmt reads unexported string fields of an enclosing struct
// without asking the type's methods.
type Secret struct{ text *string }

// NewSecret wraps s.
func NewSecret(s string) Secret { return Secret{&s} }

// Reveal returns the text. Use it only to hash it or to hand it to its owner.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Format implements fmt.Formatter for every verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// String returns "[redacted]".
func (Secret) String() string { return redacted }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler, and so guards JSON.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Hash is the SHA-256 of a secret: what is stored instead of it. A plain hash
// is enough because secrets are minted with about 256 bits of entropy.
type Hash [sha256.Size]byte

// HashSecret returns the SHA-256 of the secret part of a credential.
func HashSecret(s Secret) Hash { return hashText(s.Reveal()) }

func hashText(s string) Hash {
	var buf [maxSecret]byte
	if len(s) > len(buf) {
		return sha256.Sum256([]byte(s))
	}
	return sha256.Sum256(buf[:copy(buf[:], s)])
}

// Matches reports in constant time whether h is the hash of s.
func (h Hash) Matches(s Secret) bool { return h.equal(HashSecret(s)) }

func (h Hash) equal(o Hash) bool { return subtle.ConstantTimeCompare(h[:], o[:]) == 1 }

// String returns the hash as 64 hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText implements encoding.TextMarshaler.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads 64 hexadecimal digits.
func (h *Hash) UnmarshalText(b []byte) error {
	if len(b) != hex.EncodedLen(len(h)) {
		return fmt.Errorf("hash has %d characters, want %d hexadecimal digits", len(b), hex.EncodedLen(len(h)))
	}
	if _, err := hex.Decode(h[:], b); err != nil {
		return errors.New("hash is not hexadecimal")
	}
	return nil
}

const (
	lower     = "abcdefghijklmnopqrstuvwxyz0123456789"
	alnum     = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + lower
	idLen     = 12 // 62 bits: unique without being secret
	secLen    = 43 // 256 bits
	minID     = 4
	maxID     = 32
	minSec    = 32
	maxSecret = 64
)

// randomText draws n characters of alphabet without modulo bias.
func randomText(alphabet string, n int) (string, error) {
	limit := 256 - 256%len(alphabet)
	out := make([]byte, 0, n)
	var buf [64]byte
	for len(out) < n {
		if _, err := rand.Read(buf[:]); err != nil {
			return "", fmt.Errorf("read random bytes: %w", err)
		}
		for _, b := range buf {
			if int(b) < limit && len(out) < n {
				out = append(out, alphabet[int(b)%len(alphabet)])
			}
		}
	}
	return string(out), nil
}

func isLower(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }
func isAlnum(c byte) bool { return isLower(c) || 'A' <= c && c <= 'Z' }

func within(s string, lo, hi int, ok func(byte) bool) bool {
	if len(s) < lo || len(s) > hi {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}
