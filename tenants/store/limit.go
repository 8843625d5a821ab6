package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/quota"
)

// SetBy says whose a limit is: a tenant's admins change only their own.
type SetBy string

// Who sets limits.
const (
	ByPlatform SetBy = "platform"
	ByTenant   SetBy = "tenant"
)

// Limit is a quota as the admin API shows it. Empty key_id, model, tier and
// class match all.
type Limit struct {
	ID        string              `json:"id"`
	TenantID  string              `json:"tenant_id"`
	KeyID     string              `json:"key_id"`
	Model     string              `json:"model"`
	Tier      tenants.Tier        `json:"tier" enum:",edge,cloud"`
	Class     string              `json:"class"`
	Kind      tenants.LimitKind   `json:"kind" enum:"requests,input_tokens,output_tokens,total_tokens,cost_nanousd,escalations,concurrent"`
	Window    tenants.LimitWindow `json:"window" enum:"minute,day,month,at_once"`
	Limit     int64               `json:"limit"`
	Burst     int64               `json:"burst"`
	Shadow    bool                `json:"shadow"`
	SetBy     SetBy               `json:"set_by" enum:"platform,tenant"`
	CreatedAt time.Time           `json:"created_at"`
	// WouldHaveRefused is over all gateways, and of the cloud's requests only.
	WouldHaveRefused int64 `json:"would_have_refused" doc:"requests that the limit let pass because of shadow, since it was made"`
}

// NewLimit is a limit to be created.
type NewLimit struct {
	TenantID string              `json:"tenant_id" format:"uuid" doc:"needed unless the admin token is bound to a tenant"`
	KeyID    string              `json:"key_id" example:"*" doc:"an API key's id; * counts each key apart; empty: all together"`
	Model    string              `json:"model" example:"hub-cloud"`
	Tier     tenants.Tier        `json:"tier" enum:",edge,cloud" example:"cloud"`
	Class    string              `json:"class" example:"batch" doc:"an SLO class"`
	Kind     tenants.LimitKind   `json:"kind" need:"true" enum:"requests,input_tokens,output_tokens,total_tokens,cost_nanousd,escalations,concurrent" example:"requests"`
	Window   tenants.LimitWindow `json:"window" need:"true" enum:"minute,day,month,at_once" example:"minute" doc:"days and months are UTC; at_once goes with concurrent"`
	Limit    int64               `json:"limit" need:"true" example:"60"`
	Burst    int64               `json:"burst" example:"90" doc:"size of a rate's bucket; 0: one minute's worth"`
	Shadow   bool                `json:"shadow" example:"true" doc:"count what would be refused, refuse nothing"`
	SetBy    SetBy               `json:"-"`
}

// LimitChange changes the members that are given. What a limit counts never
// changes, because its counters would then mean something else.
type LimitChange struct {
	Limit  *int64 `json:"limit" example:"120"`
	Burst  *int64 `json:"burst" example:"180"`
	Shadow *bool  `json:"shadow" example:"true"`
}

// MaxLimitsPerTenant bounds what one request has to be checked against.
const MaxLimitsPerTenant = 200

func (n NewLimit) check() error {
	if err := checkTenant(n.TenantID); err != nil {
		return err
	}
	kind, err := quota.ParseKind(string(n.Kind))
	if err != nil {
		return badField("kind", "want requests, input_tokens, output_tokens, total_tokens, cost_nanousd, escalations or concurrent")
	}
	window, err := quota.ParseWindow(string(n.Window))
	if err != nil {
		return badField("window", "want minute, day, month or at_once")
	}
	for field, name := range map[string]string{"model": n.Model, "class": n.Class, "key_id": n.KeyID} {
		if name == "" {
			continue
		}
		if err := checkNames(field, []string{name}); err != nil {
			return err
		}
	}
	switch {
	case n.Tier != "" && n.Tier != tenants.Edge && n.Tier != tenants.Cloud:
		return badField("tier", "want edge or cloud, or nothing for both")
	case (kind == quota.Concurrent) != (window == quota.AtOnce):
		return badField("window", "at_once goes with concurrent and with nothing else")
	case kind == quota.Cost && window == quota.Minute:
		return badField("window", "money is limited per day or month")
	case n.Limit < 0:
		return badField("limit", "negative")
	case n.Burst < 0 || n.Burst > 0 && window != quota.Minute:
		return badField("burst", "only a rate has a burst, and not a negative one")
	}
	l := quota.Limit{ID: "new", Kind: kind, Window: window, Max: n.Limit, Burst: n.Burst}
	if err := l.Validate(); err != nil {
		return badField("limit", "%s", err)
	}
	if err := l.OnDevice(); err != nil && n.Tier == tenants.Edge {
		return badField("tier", "%s", err)
	}
	return nil
}

const limitColumns = `id, tenant_id::text, coalesce(key_id, ''), model, tier, class, kind, window_, limit_, burst, shadow, set_by, created_at,
	coalesce((select refused from weir.shadow_refusals where limit_id = id), 0)`

func scanLimitRow(r pgx.CollectableRow) (l Limit, err error) {
	err = r.Scan(&l.ID, &l.TenantID, &l.KeyID, &l.Model, &l.Tier, &l.Class, &l.Kind, &l.Window, &l.Limit, &l.Burst, &l.Shadow, &l.SetBy, &l.CreatedAt, &l.WouldHaveRefused)
	utc(&l.CreatedAt)
	return l, err
}

// CreateLimit adds a limit. The error names the member that refers to
// something that is not there.
func (s *Store) CreateLimit(ctx context.Context, n NewLimit) (Limit, error) {
	if err := n.check(); err != nil {
		return Limit{}, err
	}
	if n.SetBy == "" {
		n.SetBy = ByPlatform
	}
	if err := s.refersTo(ctx, n.TenantID, n.KeyID, n.Class); err != nil {
		return Limit{}, err
	}
	var have int
	if err := s.db.QueryRow(ctx, `select count(*) from weir.limits where tenant_id = $1`, n.TenantID).Scan(&have); err != nil {
		return Limit{}, wrap("create limit", err)
	}
	if have >= MaxLimitsPerTenant {
		return Limit{}, badField("tenant_id", "the tenant has %d limits already", have)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Limit{}, wrap("create limit", err)
	}
	return one(ctx, s, "create limit", scanLimitRow, `insert into weir.limits
			(id, tenant_id, key_id, model, tier, class, kind, window_, limit_, burst, shadow, set_by)
		values ($1, $2, nullif($3, ''), $4, $5, $6, $7, $8, $9, $10, $11, $12) returning `+limitColumns,
		id.String(), n.TenantID, n.KeyID, n.Model, n.Tier, n.Class, n.Kind, n.Window, n.Limit, n.Burst, n.Shadow, n.SetBy)
}

// refersTo checks that a key of the tenant and a class are there.
func (s *Store) refersTo(ctx context.Context, tenant, keyID, class string) error {
	var key, cls bool
	err := s.db.QueryRow(ctx, `select $2 in ('', '*') or exists (select from weir.api_keys where id = $2 and tenant_id = $1),
		$3 = '' or exists (select from weir.slo_classes where name = $3)`, tenant, keyID, class).Scan(&key, &cls)
	switch {
	case err != nil:
		return wrap("look up references", err)
	case !key:
		return badField("key_id", "the tenant has no such key")
	case !cls:
		return badField("class", "there is no such SLO class")
	}
	return nil
}

// LimitByID returns one limit. tenant, when not empty, must be the limit's.
func (s *Store) LimitByID(ctx context.Context, tenant, id string) (Limit, error) {
	return one(ctx, s, "read limit", scanLimitRow,
		`select `+limitColumns+` from weir.limits where id = $1 and ($2 = '' or tenant_id::text = $2)`+s.lock, id, tenant)
}

// Limits lists limits by id, which is oldest first; only the tenant's when
// given.
func (s *Store) Limits(ctx context.Context, tenant string, p Page) ([]Limit, error) {
	return list(ctx, s, "list limits", scanLimitRow,
		`select `+limitColumns+` from weir.limits where ($1 = '' or tenant_id::text = $1) and id > $2 order by id limit $3`,
		tenant, p.After, p.limit())
}

// UpdateLimit changes l, which the caller has read in the same Edit.
func (s *Store) UpdateLimit(ctx context.Context, l Limit, c LimitChange) (Limit, error) {
	n := NewLimit{TenantID: l.TenantID, Kind: l.Kind, Window: l.Window, Limit: l.Limit, Burst: l.Burst}
	if c.Limit != nil {
		n.Limit = *c.Limit
	}
	if c.Burst != nil {
		n.Burst = *c.Burst
	}
	if err := n.check(); err != nil {
		return Limit{}, err
	}
	return one(ctx, s, "update limit", scanLimitRow,
		`update weir.limits set limit_ = $2, burst = $3, shadow = coalesce($4, shadow) where id = $1 returning `+limitColumns,
		l.ID, n.Limit, n.Burst, c.Shadow)
}

// DeleteLimit removes a limit and its counters' meaning.
func (s *Store) DeleteLimit(ctx context.Context, id string) error {
	_, err := one(ctx, s, "delete limit", scanLimitRow, `delete from weir.limits where id = $1 returning `+limitColumns, id)
	return err
}
