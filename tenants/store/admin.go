package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// AdminRole says what an admin token may do.
type AdminRole string

// The roles of admin tokens.
const (
	PlatformAdmin AdminRole = "platform_admin" // everything
	TenantAdmin   AdminRole = "tenant_admin"   // everything of one tenant
	Viewer        AdminRole = "viewer"         // reads: one tenant's, or all when it has none
)

// AdminToken is an admin token without its secret.
type AdminToken struct {
	ID         string        `json:"id"`
	Role       AdminRole     `json:"role" enum:"platform_admin,tenant_admin,viewer"`
	TenantID   string        `json:"tenant_id" doc:"empty: not bound to a tenant"`
	Name       string        `json:"name"`
	State      tenants.State `json:"state" enum:"active,revoked"`
	CreatedAt  time.Time     `json:"created_at"`
	ExpiresAt  *time.Time    `json:"expires_at"`
	RotatedAt  *time.Time    `json:"rotated_at"`
	GraceUntil *time.Time    `json:"grace_until" doc:"until when the secret before the last rotation is accepted"`
	LastUsedAt *time.Time    `json:"last_used_at"`
}

// NewAdminToken is an admin token to be created.
type NewAdminToken struct {
	Role      AdminRole  `json:"role" need:"true" enum:"platform_admin,tenant_admin,viewer" example:"viewer"`
	TenantID  string     `json:"tenant_id" format:"uuid" doc:"the one tenant that it may see; a tenant_admin needs one"`
	Name      string     `json:"name" example:"dashboard"`
	ExpiresAt *time.Time `json:"expires_at" example:"2099-01-31T00:00:00Z" doc:"default never"`
}

func (n NewAdminToken) check() error {
	switch {
	case n.Role != PlatformAdmin && n.Role != TenantAdmin && n.Role != Viewer:
		return badField("role", "want platform_admin, tenant_admin or viewer")
	case n.Role == PlatformAdmin && n.TenantID != "":
		return badField("tenant_id", "a platform_admin is not bound to a tenant")
	case n.Role == TenantAdmin || n.TenantID != "":
		if err := checkTenant(n.TenantID); err != nil {
			return err
		}
	}
	if n.ExpiresAt != nil && n.ExpiresAt.Before(time.Now()) {
		return badField("expires_at", "in the past")
	}
	return checkName("name", n.Name, false)
}

const adminColumns = `id, role, coalesce(tenant_id::text, ''), name, state, created_at, expires_at, rotated_at, prev_not_after, last_used_at`

func scanAdmin(r pgx.CollectableRow) (a AdminToken, err error) {
	err = r.Scan(&a.ID, &a.Role, &a.TenantID, &a.Name, &a.State, &a.CreatedAt, &a.ExpiresAt, &a.RotatedAt, &a.GraceUntil, &a.LastUsedAt)
	utc(&a.CreatedAt, a.ExpiresAt, a.RotatedAt, a.GraceUntil, a.LastUsedAt)
	return a, err
}

// ErrAdminToken says that an admin token is unknown, expired or revoked; which
// of them is nobody's business.
var ErrAdminToken = errors.New("admin token is not valid")

// CheckAdminToken authenticates an admin token at the database's time.
func (s *Store) CheckAdminToken(ctx context.Context, t tenants.AdminToken) (AdminToken, error) {
	a := AdminToken{ID: t.ID, State: tenants.Active}
	var hash, previous []byte
	err := s.db.QueryRow(ctx, `select sha256, case when prev_not_after > now() then prev_sha256 end, role, coalesce(tenant_id::text, ''), name, expires_at from weir.admin_tokens a
		where id = $1 and state = 'active' and (expires_at is null or expires_at > now())
		and not exists (select from weir.tenants t where t.id = a.tenant_id and t.state <> 'active')`, t.ID).
		Scan(&hash, &previous, &a.Role, &a.TenantID, &a.Name, &a.ExpiresAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return AdminToken{}, ErrAdminToken
	}
	if err != nil {
		return AdminToken{}, wrap("check admin token", err)
	}
	if !tenants.Hash(hash).Matches(t.Secret) && (previous == nil || !tenants.Hash(previous).Matches(t.Secret)) {
		return AdminToken{}, ErrAdminToken
	}
	return a, nil
}

// CreateAdminToken adds a token. The secret is in the second result and
// nowhere else.
func (s *Store) CreateAdminToken(ctx context.Context, n NewAdminToken) (AdminToken, tenants.AdminToken, error) {
	if err := n.check(); err != nil {
		return AdminToken{}, tenants.AdminToken{}, err
	}
	t, err := tenants.MintAdminToken()
	if err != nil {
		return AdminToken{}, t, wrap("create admin token", err)
	}
	hash := tenants.HashSecret(t.Secret)
	a, err := one(ctx, s, "create admin token", scanAdmin, `insert into weir.admin_tokens (id, sha256, role, tenant_id, name, expires_at)
		values ($1, $2, $3, nullif($4, '')::uuid, $5, $6) returning `+adminColumns, t.ID, hash[:], n.Role, n.TenantID, n.Name, n.ExpiresAt)
	return a, t, err
}

// AdminTokenByID returns one token. tenant, when not empty, must be the token's.
func (s *Store) AdminTokenByID(ctx context.Context, tenant, id string) (AdminToken, error) {
	return one(ctx, s, "read admin token", scanAdmin,
		`select `+adminColumns+` from weir.admin_tokens where id = $1 and ($2 = '' or tenant_id::text = $2)`+s.lock, id, tenant)
}

// AdminTokens lists tokens, oldest first; only the tenant's when given.
func (s *Store) AdminTokens(ctx context.Context, tenant string, p Page) ([]AdminToken, error) {
	return listAfter(ctx, s, "admin_tokens", p.After, "list admin tokens", scanAdmin,
		`select `+adminColumns+` from weir.admin_tokens
		where ($1 = '' or tenant_id::text = $1)
		and ($2 = '' or (created_at, id) > (select created_at, id from weir.admin_tokens where id = $2))
		order by created_at, id limit $3`, tenant, p.After, p.limit())
}

// RotateAdminToken gives a token a new secret. The old one stays valid for
// grace. tenant, when not empty, must be the token's.
func (s *Store) RotateAdminToken(ctx context.Context, tenant, id string, grace time.Duration) (AdminToken, tenants.AdminToken, error) {
	if grace < 0 || grace > MaxGrace {
		return AdminToken{}, tenants.AdminToken{}, badField("grace_seconds", "want 0 to %d", int(MaxGrace.Seconds()))
	}
	t, err := tenants.MintAdminTokenFor(id)
	if err != nil {
		return AdminToken{}, t, wrap("rotate admin token", ErrNotFound) // no token has such an id
	}
	hash := tenants.HashSecret(t.Secret)
	a, err := one(ctx, s, "rotate admin token", scanAdmin,
		`update weir.admin_tokens set prev_sha256 = sha256, prev_not_after = now() + $4::interval, sha256 = $3, rotated_at = now()
		where id = $1 and ($2 = '' or tenant_id::text = $2) and state = 'active' returning `+adminColumns, id, tenant, hash[:], grace)
	return a, t, err
}

// ErrLastAdmin says that without the token nobody could administer Weir.
var ErrLastAdmin = errors.New("the last platform admin's token cannot be revoked: make another one first")

// RevokeAdminToken ends a token for good. tenant, when not empty, must be the
// token's. The error is ErrLastAdmin when no platform admin would be left.
func (s *Store) RevokeAdminToken(ctx context.Context, tenant, id string) (AdminToken, error) {
	a, err := one(ctx, s, "revoke admin token", scanAdmin,
		`update weir.admin_tokens set state = 'revoked' where id = $1 and ($2 = '' or tenant_id::text = $2) returning `+adminColumns, id, tenant)
	if err != nil || a.Role != PlatformAdmin {
		return a, err
	}
	// Two that revoke each other at the same time wait here for one another.
	if _, err := s.db.Exec(ctx, `lock table weir.admin_tokens in share row exclusive mode`); err != nil {
		return a, wrap("revoke admin token", err)
	}
	var left bool
	err = s.db.QueryRow(ctx, `select exists (select from weir.admin_tokens
		where role = 'platform_admin' and state = 'active' and expires_at is null)`).Scan(&left)
	if err == nil && !left {
		err = ErrLastAdmin
	}
	return a, wrap("revoke admin token", err)
}

// FirstAdminToken makes a platform admin's token when there is no admin token
// at all, and hands it to keep before it becomes valid. Of several callers at
// the same time one makes it. made tells whether this one did.
func (s *Store) FirstAdminToken(ctx context.Context, keep func(tenants.AdminToken) error) (made bool, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `lock table weir.admin_tokens in share row exclusive mode`); err != nil {
			return err
		}
		var any bool
		if err := tx.QueryRow(ctx, `select exists (select from weir.admin_tokens)`).Scan(&any); err != nil || any {
			return err
		}
		a, t, err := (&Store{pool: s.pool, db: tx}).CreateAdminToken(ctx, NewAdminToken{Role: PlatformAdmin, Name: "first"})
		if err != nil {
			return err
		}
		if err := audit(ctx, tx, Actor{ID: "system"}, &Change{Action: "admin_token.create", Kind: "admin_token", ObjectID: a.ID, After: a}); err != nil {
			return err
		}
		made = true
		return keep(t)
	})
	return made && err == nil, wrap("first admin token", err)
}
