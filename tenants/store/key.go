package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// Key is an API key as the admin API shows it: without its secret.
type Key struct {
	ID         string        `json:"id"`
	TenantID   string        `json:"tenant_id"`
	Name       string        `json:"name"`
	State      tenants.State `json:"state" enum:"active,revoked"`
	Scopes     []string      `json:"scopes"`
	Models     []string      `json:"models" doc:"allowed models; none: all"`
	Classes    []string      `json:"classes" doc:"allowed SLO classes; none: all"`
	CreatedAt  time.Time     `json:"created_at"`
	ExpiresAt  *time.Time    `json:"expires_at"`
	RotatedAt  *time.Time    `json:"rotated_at"`
	GraceUntil *time.Time    `json:"grace_until" doc:"until when the secret before the last rotation is accepted"`
	LastUsedAt *time.Time    `json:"last_used_at"`
}

// NewKey is a key to be created.
type NewKey struct {
	TenantID  string     `json:"tenant_id" format:"uuid" doc:"needed unless the admin token is bound to a tenant"`
	Name      string     `json:"name" example:"ci"`
	Scopes    []string   `json:"scopes" example:"explain"`
	Models    []string   `json:"models" example:"auto" doc:"allowed models; none: all"`
	Classes   []string   `json:"classes" example:"batch" doc:"allowed SLO classes; none: all"`
	ExpiresAt *time.Time `json:"expires_at" example:"2099-01-31T00:00:00Z" doc:"default never"`
}

// KeyChange changes the members that are given.
type KeyChange struct {
	Name      *string        `json:"name" example:"ci"`
	Scopes    *[]string      `json:"scopes" example:"explain"`
	Models    *[]string      `json:"models" example:"auto"`
	Classes   *[]string      `json:"classes" example:"batch"`
	ExpiresAt Set[time.Time] `json:"expires_at" example:"2099-01-31T00:00:00Z" doc:"null: never"`
}

// MaxGrace bounds how long a rotated secret stays valid.
const MaxGrace = 30 * 24 * time.Hour

const (
	maxNames     = 64
	maxNameBytes = 128
)

func checkNames(field string, names []string) error {
	if len(names) > maxNames {
		return badField(field, "want at most %d names", maxNames)
	}
	for _, n := range names {
		ok := n != "" && len(n) <= maxNameBytes
		for i := 0; i < len(n); i++ {
			ok = ok && '!' <= n[i] && n[i] <= '~'
		}
		if !ok {
			return badField(field, "want names of 1 to %d printable ASCII characters without spaces", maxNameBytes)
		}
	}
	return nil
}

func (n NewKey) check() error {
	if err := checkTenant(n.TenantID); err != nil {
		return err
	}
	if n.ExpiresAt != nil && n.ExpiresAt.Before(time.Now()) {
		return badField("expires_at", "in the past")
	}
	if err := checkName("name", n.Name, false); err != nil {
		return err
	}
	return checkAllowed(&n.Scopes, &n.Models, &n.Classes)
}

// checkAllowed checks what a key may do; nil is not given.
func checkAllowed(scopes, models, classes *[]string) error {
	for _, m := range []struct {
		field string
		names *[]string
	}{{"scopes", scopes}, {"models", models}, {"classes", classes}} {
		if m.names == nil {
			continue
		}
		if err := checkNames(m.field, *m.names); err != nil {
			return err
		}
	}
	if scopes != nil {
		for _, s := range *scopes {
			if s != tenants.ScopeExplain {
				return badField("scopes", "there is no scope %q: want %s", s, tenants.ScopeExplain)
			}
		}
	}
	return nil
}

// checkClasses refuses classes that are not there.
func (s *Store) checkClasses(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	missing, err := list(ctx, s, "look up SLO classes", pgx.RowTo[string],
		`select n from unnest($1::text[]) n where n not in (select name from weir.slo_classes) order by n`, names)
	if err == nil && len(missing) > 0 {
		err = badField("classes", "there is no SLO class %q", missing[0])
	}
	return err
}

const keyColumns = `id, tenant_id::text, name, state, scopes, models, classes, created_at, expires_at, rotated_at, prev_not_after, last_used_at`

func scanKey(r pgx.CollectableRow) (k Key, err error) {
	err = r.Scan(&k.ID, &k.TenantID, &k.Name, &k.State, &k.Scopes, &k.Models, &k.Classes, &k.CreatedAt,
		&k.ExpiresAt, &k.RotatedAt, &k.GraceUntil, &k.LastUsedAt)
	k.CreatedAt = k.CreatedAt.UTC()
	utc(k.ExpiresAt, k.RotatedAt, k.GraceUntil, k.LastUsedAt)
	return k, err
}

func utc(times ...*time.Time) {
	for _, t := range times {
		if t != nil {
			*t = t.UTC()
		}
	}
}

// CreateKey adds a key. The secret is in the second result and nowhere else.
// The error is ErrNotFound when there is no such tenant.
func (s *Store) CreateKey(ctx context.Context, n NewKey) (Key, tenants.Key, error) {
	if err := n.check(); err != nil {
		return Key{}, tenants.Key{}, err
	}
	if err := s.checkClasses(ctx, n.Classes); err != nil {
		return Key{}, tenants.Key{}, err
	}
	secret, err := tenants.MintKey()
	if err != nil {
		return Key{}, tenants.Key{}, wrap("create key", err)
	}
	hash := tenants.HashSecret(secret.Secret)
	k, err := one(ctx, s, "create key", scanKey,
		`insert into weir.api_keys (id, tenant_id, name, sha256, scopes, models, classes, expires_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8) returning `+keyColumns,
		secret.ID, n.TenantID, n.Name, hash[:], nonNil(n.Scopes), nonNil(n.Models), nonNil(n.Classes), n.ExpiresAt)
	return k, secret, err
}

// KeyByID returns one key. tenant, when not empty, must be the key's.
func (s *Store) KeyByID(ctx context.Context, tenant, id string) (Key, error) {
	return one(ctx, s, "read key", scanKey,
		`select `+keyColumns+` from weir.api_keys where id = $1 and ($2 = '' or tenant_id::text = $2)`+s.lock, id, tenant)
}

// UpdateKey changes a key that is not revoked. tenant, when not empty, must be
// the key's.
func (s *Store) UpdateKey(ctx context.Context, tenant, id string, c KeyChange) (Key, error) {
	if c.Name != nil {
		if err := checkName("name", *c.Name, false); err != nil {
			return Key{}, err
		}
	}
	if err := checkAllowed(c.Scopes, c.Models, c.Classes); err != nil {
		return Key{}, err
	}
	if c.Classes != nil {
		if err := s.checkClasses(ctx, *c.Classes); err != nil {
			return Key{}, err
		}
	}
	if c.ExpiresAt.To != nil && c.ExpiresAt.To.Before(time.Now()) {
		return Key{}, badField("expires_at", "in the past: revoke the key to end it now")
	}
	return one(ctx, s, "update key", scanKey,
		`update weir.api_keys set name = coalesce($3, name), scopes = coalesce($4, scopes), models = coalesce($5, models),
			classes = coalesce($6, classes), expires_at = case when $7 then $8 else expires_at end
		where id = $1 and ($2 = '' or tenant_id::text = $2) and state = 'active' returning `+keyColumns,
		id, tenant, c.Name, c.Scopes, c.Models, c.Classes, c.ExpiresAt.Given, c.ExpiresAt.To)
}

// RotateKey gives a key a new secret. The old one stays valid for grace.
// tenant, when not empty, must be the key's.
func (s *Store) RotateKey(ctx context.Context, tenant, id string, grace time.Duration) (Key, tenants.Key, error) {
	if grace < 0 || grace > MaxGrace {
		return Key{}, tenants.Key{}, badField("grace_seconds", "want 0 to %d", int(MaxGrace.Seconds()))
	}
	secret, err := tenants.MintKeyFor(id)
	if err != nil {
		return Key{}, tenants.Key{}, wrap("rotate key", ErrNotFound) // no key has such an id
	}
	hash := tenants.HashSecret(secret.Secret)
	k, err := one(ctx, s, "rotate key", scanKey,
		`update weir.api_keys set prev_sha256 = sha256, prev_not_after = now() + $4::interval, sha256 = $3, rotated_at = now()
		where id = $1 and ($2 = '' or tenant_id::text = $2) and state = 'active' returning `+keyColumns,
		id, tenant, hash[:], grace)
	return k, secret, err
}

// RevokeKey ends a key for good. tenant, when not empty, must be the key's.
func (s *Store) RevokeKey(ctx context.Context, tenant, id string) (Key, error) {
	return one(ctx, s, "revoke key", scanKey,
		`update weir.api_keys set state = 'revoked' where id = $1 and ($2 = '' or tenant_id::text = $2) returning `+keyColumns,
		id, tenant)
}

// Keys lists keys, oldest first; only the tenant's when given.
func (s *Store) Keys(ctx context.Context, tenant string, p Page) ([]Key, error) {
	return listAfter(ctx, s, "api_keys", p.After, "list keys", scanKey,
		`select `+keyColumns+` from weir.api_keys
		where ($1 = '' or tenant_id::text = $1)
		and ($2 = '' or (created_at, id) > (select created_at, id from weir.api_keys where id = $2))
		order by created_at, id limit $3`, tenant, p.After, p.limit())
}

func nonNil(s []string) []string { return append([]string{}, s...) }
