package store

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Policy is how a tenant's requests, or those of one class, are cascaded. It
// is both what is shown and what is set.
type Policy struct {
	TenantID  string          `json:"tenant_id" format:"uuid" doc:"needed unless the admin token is bound to a tenant"`
	Class     string          `json:"class" example:"batch" doc:"empty: every class without a policy of its own"`
	Mode      string          `json:"mode" enum:",auto,edge-only,cloud-only,prefer-edge,prefer-cloud" example:"prefer-edge" doc:"where a request says none; empty: auto"`
	Threshold *float64        `json:"threshold" example:"0.75" doc:"confidence from which the edge's answer stands; null: the calibrated default"`
	Spec      json.RawMessage `json:"spec" example:"{\"name\": \"fifth\", \"rate\": 0.2}" doc:"the cascade's own settings: name and at most one of threshold, rate, value, budget, risk; null: none"`
}

const maxSpec = 16 << 10

var modes = []string{"", "auto", "edge-only", "cloud-only", "prefer-edge", "prefer-cloud"}

func (p *Policy) check() error {
	if err := checkTenant(p.TenantID); err != nil {
		return err
	}
	if p.Class != "" {
		if err := checkNames("class", []string{p.Class}); err != nil {
			return err
		}
	}
	if !slices.Contains(modes, p.Mode) {
		return badField("mode", "want one of %s, or nothing", strings.Join(modes[1:], ", "))
	}
	if t := p.Threshold; t != nil && !(*t >= 0 && *t <= 1) {
		return badField("threshold", "want 0 to 1")
	}
	if bytes.Equal(p.Spec, []byte("null")) {
		p.Spec = nil
	}
	if len(p.Spec) > maxSpec {
		return badField("spec", "want at most %d bytes", maxSpec)
	}
	if len(p.Spec) > 0 && p.Spec[0] != '{' {
		return badField("spec", "want an object")
	}
	if bytes.Contains(p.Spec, []byte(`\u0000`)) {
		return badField("spec", "must not hold the character NUL")
	}
	return nil
}

const policyColumns = `tenant_id::text, class, mode, threshold, spec`

func scanPolicyRow(r pgx.CollectableRow) (p Policy, err error) {
	var spec []byte
	err = r.Scan(&p.TenantID, &p.Class, &p.Mode, &p.Threshold, &spec)
	p.Spec = spec
	return p, err
}

// PutPolicy sets the policy of a tenant and class.
func (s *Store) PutPolicy(ctx context.Context, p Policy) (Policy, error) {
	if err := p.check(); err != nil {
		return Policy{}, err
	}
	if err := s.refersTo(ctx, p.TenantID, "", p.Class); err != nil {
		return Policy{}, err
	}
	var spec *string
	if len(p.Spec) > 0 {
		text := string(p.Spec)
		spec = &text
	}
	return one(ctx, s, "set policy", scanPolicyRow, `insert into weir.policies (tenant_id, class, mode, threshold, spec) values ($1, $2, $3, $4, $5::jsonb)
		on conflict (tenant_id, class) do update set mode = excluded.mode, threshold = excluded.threshold, spec = excluded.spec
		returning `+policyColumns, p.TenantID, p.Class, p.Mode, p.Threshold, spec)
}

// PolicyOf returns the policy of exactly this tenant and class.
func (s *Store) PolicyOf(ctx context.Context, tenant, class string) (Policy, error) {
	return one(ctx, s, "read policy", scanPolicyRow,
		`select `+policyColumns+` from weir.policies where tenant_id::text = $1 and class = $2`+s.lock, tenant, class)
}

// Policies lists policies by tenant and class; only the tenant's when given.
// The cursor is "tenant/class".
func (s *Store) Policies(ctx context.Context, tenant string, p Page) ([]Policy, error) {
	at, class, _ := strings.Cut(p.After, "/")
	if _, err := uuid.Parse(at); err != nil && p.After != "" {
		return nil, badField("after", "not a cursor of this list")
	}
	return list(ctx, s, "list policies", scanPolicyRow,
		`select `+policyColumns+` from weir.policies
		where ($1 = '' or tenant_id::text = $1) and ($2 = '' or (tenant_id::text, class) > ($2, $3))
		order by tenant_id::text, class limit $4`, tenant, at, class, p.limit())
}

// DeletePolicy removes a policy.
func (s *Store) DeletePolicy(ctx context.Context, tenant, class string) error {
	_, err := one(ctx, s, "delete policy", scanPolicyRow,
		`delete from weir.policies where tenant_id::text = $1 and class = $2 returning `+policyColumns, tenant, class)
	return err
}
