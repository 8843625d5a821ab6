package store

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// Tenant is a tenant as the admin API shows it.
type Tenant struct {
	ID        string        `json:"id"`
	Name      string        `json:"name"`
	State     tenants.State `json:"state" enum:"active,suspended"`
	Weight    float64       `json:"weight" doc:"share in the fair queue"`
	Strict    bool          `json:"strict" doc:"refuse rather than overrun when a budget's lease cannot be renewed"`
	CreatedAt time.Time     `json:"created_at"`
}

// NewTenant is a tenant to be created.
type NewTenant struct {
	Name   string   `json:"name" need:"true" example:"acme"`
	Weight *float64 `json:"weight" example:"2.5" doc:"default 1"`
	Strict bool     `json:"strict" example:"true"`
}

// TenantChange changes the members that are not nil.
type TenantChange struct {
	Name   *string        `json:"name" example:"acme"`
	State  *tenants.State `json:"state" enum:"active,suspended" example:"suspended"`
	Weight *float64       `json:"weight" example:"2.5"`
	Strict *bool          `json:"strict" example:"true"`
}

const maxText = 128

func checkName(field, s string, need bool) error {
	if need && strings.TrimSpace(s) == "" {
		return badField(field, "missing")
	}
	if len(s) > maxText || strings.ToValidUTF8(s, "") != s || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' }) {
		return badField(field, "want at most %d bytes of text on one line", maxText)
	}
	return nil
}

func checkTenant(id string) error {
	if id == "" {
		return badField("tenant_id", "missing")
	}
	if _, err := uuid.Parse(id); err != nil || len(id) != 36 {
		return badField("tenant_id", "want a UUID")
	}
	return nil
}

func checkWeight(w *float64) error {
	if w != nil && !(*w > 0 && *w <= 1000) {
		return badField("weight", "want more than 0 and at most 1000")
	}
	return nil
}

const tenantColumns = `id::text, name, state, weight, strict, created_at`

func scanTenant(r pgx.CollectableRow) (t Tenant, err error) {
	err = r.Scan(&t.ID, &t.Name, &t.State, &t.Weight, &t.Strict, &t.CreatedAt)
	t.CreatedAt = t.CreatedAt.UTC()
	return t, err
}

// CreateTenant adds a tenant. The error is ErrExists when the name is taken.
func (s *Store) CreateTenant(ctx context.Context, n NewTenant) (Tenant, error) {
	if err := checkName("name", n.Name, true); err != nil {
		return Tenant{}, err
	}
	if err := checkWeight(n.Weight); err != nil {
		return Tenant{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Tenant{}, wrap("create tenant", err)
	}
	return one(ctx, s, "create tenant", scanTenant,
		`insert into weir.tenants (id, name, weight, strict) values ($1, $2, coalesce($3::double precision, 1), $4) returning `+tenantColumns,
		id, n.Name, n.Weight, n.Strict)
}

// UpdateTenant changes a tenant.
func (s *Store) UpdateTenant(ctx context.Context, id string, c TenantChange) (Tenant, error) {
	if c.Name != nil {
		if err := checkName("name", *c.Name, true); err != nil {
			return Tenant{}, err
		}
	}
	if c.State != nil && *c.State != tenants.Active && *c.State != tenants.Suspended {
		return Tenant{}, badField("state", "want active or suspended")
	}
	if err := checkWeight(c.Weight); err != nil {
		return Tenant{}, err
	}
	if _, err := uuid.Parse(id); err != nil {
		return Tenant{}, wrap("update tenant", ErrNotFound)
	}
	return one(ctx, s, "update tenant", scanTenant,
		`update weir.tenants set name = coalesce($2, name), state = coalesce($3, state), weight = coalesce($4, weight),
			strict = coalesce($5, strict) where id = $1 returning `+tenantColumns,
		id, c.Name, c.State, c.Weight, c.Strict)
}

// TenantByID returns one tenant.
func (s *Store) TenantByID(ctx context.Context, id string) (Tenant, error) {
	return one(ctx, s, "read tenant", scanTenant, `select `+tenantColumns+` from weir.tenants where id::text = $1`+s.lock, id)
}

// Tenants lists tenants, oldest first; only the one with the id when given.
func (s *Store) Tenants(ctx context.Context, id string, p Page) ([]Tenant, error) {
	return list(ctx, s, "list tenants", scanTenant,
		`select `+tenantColumns+` from weir.tenants
		where ($1 = '' or id::text = $1) and ($2 = '' or id > (select id from weir.tenants where id::text = $2))
		order by id limit $3`, id, p.After, p.limit())
}

// one runs a statement that returns exactly one row.
func one[T any](ctx context.Context, s *Store, doing string, scan func(pgx.CollectableRow) (T, error), sql string, args ...any) (T, error) {
	rows, err := s.db.Query(ctx, sql, args...)
	if err != nil {
		var zero T
		return zero, wrap(doing, err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, scan)
	return v, wrap(doing, err)
}

// list runs a query and returns its rows, never nil.
func list[T any](ctx context.Context, s *Store, doing string, scan func(pgx.CollectableRow) (T, error), sql string, args ...any) ([]T, error) {
	rows, err := s.db.Query(ctx, sql, args...)
	if err != nil {
		return nil, wrap(doing, err)
	}
	v, err := pgx.CollectRows(rows, scan)
	return v, wrap(doing, err)
}

// listAfter is list for a table whose pages begin after an id: one that nobody
// has is no cursor, while one of the last row has an empty page after it.
func listAfter[T any](ctx context.Context, s *Store, table, after, doing string, scan func(pgx.CollectableRow) (T, error), sql string, args ...any) ([]T, error) {
	out, err := list(ctx, s, doing, scan, sql, args...)
	if err != nil || len(out) > 0 || after == "" {
		return out, err
	}
	known, err := list(ctx, s, doing, pgx.RowTo[bool], `select exists (select from weir.`+table+` where id = $1)`, after)
	if err == nil && !known[0] {
		return nil, badField("after", "not a cursor of this list")
	}
	return out, err
}
