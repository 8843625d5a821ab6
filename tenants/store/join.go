package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// Why a join token was not accepted.
var (
	ErrTokenUnknown = errors.New("unknown join token")
	ErrTokenUsed    = errors.New("join token has been used")
	ErrTokenExpired = errors.New("join token has expired")
)

// MaxJoinLife bounds how long a join token may wait for its device.
const MaxJoinLife = 30 * 24 * time.Hour

// JoinToken is a join token as the admin API shows it: without its secret.
type JoinToken struct {
	ID        string     `json:"id"`
	TenantID  string     `json:"tenant_id"`
	Name      string     `json:"name"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt time.Time  `json:"expires_at"`
	UsedAt    *time.Time `json:"used_at"`
	DeviceID  *string    `json:"device_id"`
}

// NewJoinToken is a join token to be created.
type NewJoinToken struct {
	TenantID   string `json:"tenant_id" format:"uuid" doc:"needed unless the admin token is bound to a tenant"`
	Name       string `json:"name" example:"kitchen" doc:"of the device to come"`
	TTLSeconds *int64 `json:"ttl_seconds" example:"3600" doc:"default a day, at most 30"`
}

const defaultJoinLife = 24 * time.Hour

// joinLife reads the ttl_seconds of a new token.
func joinLife(s *int64) (time.Duration, error) {
	const most = int64(MaxJoinLife / time.Second)
	switch {
	case s == nil:
		return defaultJoinLife, nil
	case *s < 1 || *s > most:
		return 0, badField("ttl_seconds", "want 1 to %d", most)
	default:
		return time.Duration(*s) * time.Second, nil
	}
}

const joinColumns = `id, tenant_id::text, name, created_at, expires_at, used_at, device_id::text`

func scanJoin(r pgx.CollectableRow) (j JoinToken, err error) {
	err = r.Scan(&j.ID, &j.TenantID, &j.Name, &j.CreatedAt, &j.ExpiresAt, &j.UsedAt, &j.DeviceID)
	utc(&j.CreatedAt, &j.ExpiresAt, j.UsedAt)
	return j, err
}

// CreateJoinToken adds a token that carries the authority's pin. The secret is
// in the second result and nowhere else.
func (s *Store) CreateJoinToken(ctx context.Context, n NewJoinToken, pin tenants.Pin) (JoinToken, tenants.JoinToken, error) {
	if err := checkTenant(n.TenantID); err != nil {
		return JoinToken{}, tenants.JoinToken{}, err
	}
	life, err := joinLife(n.TTLSeconds)
	if err != nil {
		return JoinToken{}, tenants.JoinToken{}, err
	}
	if err := checkName("name", n.Name, false); err != nil {
		return JoinToken{}, tenants.JoinToken{}, err
	}
	secret, err := tenants.MintJoinToken(pin)
	if err != nil {
		return JoinToken{}, tenants.JoinToken{}, wrap("create join token", err)
	}
	hash := tenants.HashSecret(secret.Secret)
	j, err := one(ctx, s, "create join token", scanJoin,
		`insert into weir.join_tokens (id, tenant_id, name, sha256, expires_at)
		values ($1, $2, $3, $4, now() + $5::interval) returning `+joinColumns,
		secret.ID, n.TenantID, n.Name, hash[:], life)
	return j, secret, err
}

// JoinTokenByID returns one token. tenant, when not empty, must be the token's.
func (s *Store) JoinTokenByID(ctx context.Context, tenant, id string) (JoinToken, error) {
	return one(ctx, s, "read join token", scanJoin,
		`select `+joinColumns+` from weir.join_tokens where id = $1 and ($2 = '' or tenant_id::text = $2)`, id, tenant)
}

// JoinTokens lists tokens, oldest first; only the tenant's when given.
func (s *Store) JoinTokens(ctx context.Context, tenant string, p Page) ([]JoinToken, error) {
	return listAfter(ctx, s, "join_tokens", p.After, "list join tokens", scanJoin,
		`select `+joinColumns+` from weir.join_tokens
		where ($1 = '' or tenant_id::text = $1)
		and ($2 = '' or (created_at, id) > (select created_at, id from weir.join_tokens where id = $2))
		order by created_at, id limit $3`, tenant, p.After, p.limit())
}

// Join is a device's request to join with a token.
type Join struct {
	Token tenants.JoinToken
	Key   tenants.Hash // SHA-256 of the device's public key (SPKI)
	// CertLife is how long the certificate will be valid.
	CertLife time.Duration
}

// replayAfter is when a used token may be shown again by the same device, that
// is with the same public key: its first answer was lost on the way. Earlier
// it is one of several joins at the same time, of which one wins.
const replayAfter = 10 * time.Second

// ConsumeJoinToken uses up a join token and adds its device; of any number of
// calls with one token exactly one succeeds. sign is called inside the
// transaction with the new device, and an error of it leaves the token unused.
// The error is ErrTokenUnknown, ErrTokenUsed, ErrTokenExpired,
// tenants.ErrTenantSuspended or sign's.
func (s *Store) ConsumeJoinToken(ctx context.Context, j Join, sign func(Device) error) (Device, error) {
	var dev Device
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		t, err := lockToken(ctx, tx, j.Token)
		if err != nil {
			return err
		}
		if dev, err = t.admit(ctx, tx, j); err != nil {
			return err
		}
		return sign(dev)
	})
	if err != nil {
		return Device{}, fmt.Errorf("join: %w", err)
	}
	return dev, nil
}

// token is a row of join_tokens under its lock.
type token struct {
	id, tenant, name, device string
	used                     bool
	usedFor                  time.Duration // since its use
}

// lockToken finds the token and holds its row until the transaction's end.
func lockToken(ctx context.Context, tx pgx.Tx, shown tenants.JoinToken) (token, error) {
	t := token{id: shown.ID}
	var hash []byte
	var expired bool
	var state tenants.State
	err := tx.QueryRow(ctx, `select j.tenant_id::text, j.name, j.sha256, j.expires_at <= now(), j.used_at is not null,
			coalesce(clock_timestamp() - j.used_at, interval '0'), coalesce(j.device_id::text, ''), t.state
		from weir.join_tokens j join weir.tenants t on t.id = j.tenant_id where j.id = $1 for update of j`, shown.ID).
		Scan(&t.tenant, &t.name, &hash, &expired, &t.used, &t.usedFor, &t.device, &state)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return t, ErrTokenUnknown
	case err != nil:
		return t, err
	case !tenants.Hash(hash).Matches(shown.Secret): // before the rest, which only its holder may know
		return t, ErrTokenUnknown
	case expired:
		return t, ErrTokenExpired
	case state != tenants.Active:
		return t, tenants.ErrTenantSuspended
	}
	return t, nil
}

func (t token) admit(ctx context.Context, tx pgx.Tx, j Join) (Device, error) {
	if t.used {
		if t.usedFor < replayAfter {
			return Device{}, ErrTokenUsed
		}
		d, err := oneTx(ctx, tx, scanDevice, `update weir.devices set cert_not_after = now() + $3::interval
			where id = $1 and key_sha256 = $2 and state = 'active' returning `+deviceColumns, t.device, j.Key[:], j.CertLife)
		if errors.Is(err, pgx.ErrNoRows) {
			return Device{}, ErrTokenUsed
		}
		return d, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Device{}, err
	}
	d, err := oneTx(ctx, tx, scanDevice, `insert into weir.devices (id, tenant_id, name, key_sha256, cert_not_after)
		values ($1, $2, $3, $4, now() + $5::interval) returning `+deviceColumns, id, t.tenant, t.name, j.Key[:], j.CertLife)
	if err != nil {
		return Device{}, err
	}
	_, err = tx.Exec(ctx, `update weir.join_tokens set used_at = clock_timestamp(), device_id = $2 where id = $1`, t.id, id)
	return d, err
}

func oneTx[T any](ctx context.Context, tx pgx.Tx, scan func(pgx.CollectableRow) (T, error), sql string, args ...any) (T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		var zero T
		return zero, err
	}
	return pgx.CollectExactlyOneRow(rows, scan)
}
