package tenants

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// ErrMalformed marks a credential whose text does not have the form of its
// kind. The error never repeats the text.
var ErrMalformed = errors.New("malformed credential")

const (
	keyPrefix   = "wk_"
	adminPrefix = "wa_"
)

// Key is an application's API key, "wk_<id>_<secret>". The id is public and
// stays the same when the secret is rotated.
type Key struct {
	ID     string // 4 to 32 of a-z0-9
	Secret Secret // 32 to 64 of A-Za-z0-9
}

// MintKey makes a key with a new id and a new secret of 256 bits.
func MintKey() (Key, error) {
	id, err := randomText(lower, idLen)
	if err != nil {
		return Key{}, err
	}
	return MintKeyFor(id)
}

// MintKeyFor makes a new secret for the key id, as rotation does.
func MintKeyFor(id string) (Key, error) {
	sec, err := mintSecret(id)
	return Key{id, sec}, err
}

// ParseKey reads "wk_<id>_<secret>". The error is ErrMalformed.
func ParseKey(s string) (Key, error) {
	id, sec, ok := split(s, keyPrefix)
	if !ok {
		return Key{}, fmt.Errorf("%w: an API key looks like wk_<id>_<secret>", ErrMalformed)
	}
	return Key{id, NewSecret(sec)}, nil
}

// Reveal returns the whole key, for its owner's eyes once.
func (k Key) Reveal() string { return keyPrefix + k.ID + "_" + k.Secret.Reveal() }

// String returns the key without its secret.
func (k Key) String() string { return keyPrefix + k.ID + "_" + redacted }

// Format implements fmt.Formatter, so that no verb reveals the secret.
func (k Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// LogValue implements slog.LogValuer.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText implements encoding.TextMarshaler without the secret.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// AdminToken is a machine's token for the admin API, "wa_<id>_<secret>".
type AdminToken struct {
	ID     string // 4 to 32 of a-z0-9
	Secret Secret // 32 to 64 of A-Za-z0-9
}

// MintAdminToken makes a token with a new id and a new secret of 256 bits.
func MintAdminToken() (AdminToken, error) {
	id, err := randomText(lower, idLen)
	if err != nil {
		return AdminToken{}, err
	}
	return MintAdminTokenFor(id)
}

// MintAdminTokenFor makes a new secret for the token id, as rotation does.
func MintAdminTokenFor(id string) (AdminToken, error) {
	sec, err := mintSecret(id)
	return AdminToken{id, sec}, err
}

// ParseAdminToken reads "wa_<id>_<secret>". The error is ErrMalformed.
func ParseAdminToken(s string) (AdminToken, error) {
	id, sec, ok := split(s, adminPrefix)
	if !ok {
		return AdminToken{}, fmt.Errorf("%w: an admin token looks like wa_<id>_<secret>", ErrMalformed)
	}
	return AdminToken{id, NewSecret(sec)}, nil
}

// Reveal returns the whole token, for its owner's eyes once.
func (t AdminToken) Reveal() string { return adminPrefix + t.ID + "_" + t.Secret.Reveal() }

// String returns the token without its secret.
func (t AdminToken) String() string { return adminPrefix + t.ID + "_" + redacted }

// Format implements fmt.Formatter, so that no verb reveals the secret.
func (t AdminToken) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(t.String())) }

// LogValue implements slog.LogValuer.
func (t AdminToken) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText implements encoding.TextMarshaler without the secret.
func (t AdminToken) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func mintSecret(id string) (Secret, error) {
	if !within(id, minID, maxID, isLower) {
		return Secret{}, fmt.Errorf("%w: an id is %d to %d of a-z0-9", ErrMalformed, minID, maxID)
	}
	s, err := randomText(alnum, secLen)
	return NewSecret(s), err
}

// split cuts "<prefix><id>_<secret>" without allocating.
func split(s, prefix string) (id, secret string, ok bool) {
	if len(s) > len(prefix)+maxID+1+maxSecret {
		return "", "", false
	}
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return "", "", false
	}
	id, secret, ok = strings.Cut(rest, "_")
	ok = ok && within(id, minID, maxID, isLower) && within(secret, minSec, maxSecret, isAlnum)
	return id, secret, ok
}
