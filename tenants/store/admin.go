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
	ID        string
	Role      AdminRole
	TenantID  string // "": not bound to a tenant
	Name      string
	ExpiresAt *time.Time
}

// ErrAdminToken says that an admin token is unknown, expired or revoked; which
// of them is nobody's business.
var ErrAdminToken = errors.New("admin token is not valid")

// CheckAdminToken authenticates an admin token at the database's time.
func (s *Store) CheckAdminToken(ctx context.Context, t tenants.AdminToken) (AdminToken, error) {
	a := AdminToken{ID: t.ID}
	var hash []byte
	err := s.pool.QueryRow(ctx, `select sha256, role, coalesce(tenant_id::text, ''), name, expires_at from weir.admin_tokens
		where id = $1 and state = 'active' and (expires_at is null or expires_at > now())`, t.ID).
		Scan(&hash, &a.Role, &a.TenantID, &a.Name, &a.ExpiresAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return AdminToken{}, ErrAdminToken
	}
	if err != nil {
		return AdminToken{}, wrap("check admin token", err)
	}
	if !tenants.Hash(hash).Matches(t.Secret) {
		return AdminToken{}, ErrAdminToken
	}
	return a, nil
}

// CreateAdminToken adds a token with the role, the tenant, the name and the
// expiry of a; the id is minted. The secret is in the result and nowhere else.
func (s *Store) CreateAdminToken(ctx context.Context, a AdminToken) (tenants.AdminToken, error) {
	var t tenants.AdminToken
	err := s.inTx(ctx, func(tx pgx.Tx) (err error) {
		t, err = insertAdmin(ctx, tx, a)
		return err
	})
	return t, wrap("create admin token", err)
}

func insertAdmin(ctx context.Context, tx pgx.Tx, a AdminToken) (tenants.AdminToken, error) {
	t, err := tenants.MintAdminToken()
	if err != nil {
		return t, err
	}
	hash := tenants.HashSecret(t.Secret)
	_, err = tx.Exec(ctx, `insert into weir.admin_tokens (id, sha256, role, tenant_id, name, expires_at)
		values ($1, $2, $3, nullif($4, '')::uuid, $5, $6)`, t.ID, hash[:], a.Role, a.TenantID, a.Name, a.ExpiresAt)
	return t, err
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
		t, err := insertAdmin(ctx, tx, AdminToken{Role: PlatformAdmin, Name: "first"})
		if err != nil {
			return err
		}
		made = true
		return keep(t)
	})
	return made && err == nil, wrap("first admin token", err)
}
