package report

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// LimitUse is how a limit stands. Used and Remaining are null where the ledger
// cannot know them: rates and slots live in the gateways' memory.
type LimitUse struct {
	ID        string              `json:"id"`
	KeyID     string              `json:"key_id,omitempty" doc:"* counts each key apart; the numbers are then this key's"`
	Model     string              `json:"model,omitempty"`
	Tier      tenants.Tier        `json:"tier,omitempty"`
	Class     string              `json:"class,omitempty"`
	Kind      tenants.LimitKind   `json:"kind"`
	Window    tenants.LimitWindow `json:"window"`
	Limit     int64               `json:"limit"`
	Shadow    bool                `json:"shadow,omitempty"`
	Used      *int64              `json:"used" doc:"settled in this period; null where it is not counted by period"`
	Remaining *int64              `json:"remaining" doc:"never below 0"`
	ResetAt   *time.Time          `json:"reset_at" doc:"when the period ends, or the rate's bucket is full"`
	// WouldHaveRefused is over all gateways and keys.
	WouldHaveRefused int64 `json:"would_have_refused" doc:"requests that the limit let pass because of shadow, since it was made"`
}

// Now sets what a gateway knows of a rate or of slots: its own share.
func (u *LimitUse) Now(remaining int64, reset time.Time) {
	u.Remaining = &remaining
	if u.Window == tenants.PerMinute {
		u.ResetAt = &reset
	}
}

// Limits tells how those limits of a tenant stand that apply to a key. With
// keyID "" all of them are told, and those that count each key apart have no
// numbers. Edge tokens do not consume limits.
func Limits(ctx context.Context, db DB, tenantID, keyID string, all []tenants.Limit, now time.Time) ([]LimitUse, error) {
	out := []LimitUse{}
	shadowed, err := shadowRefusals(ctx, db, tenantID)
	if err != nil {
		return nil, err
	}
	spent := map[tenants.LimitWindow][]Group{}
	for _, l := range all {
		if l.TenantID != tenantID || keyID != "" && l.KeyID != "" && l.KeyID != "*" && l.KeyID != keyID {
			continue
		}
		u := LimitUse{ID: l.ID, KeyID: l.KeyID, Model: l.Model, Tier: l.Tier, Class: l.Class, Kind: l.Kind, Window: l.Window, Limit: l.Limit, Shadow: l.Shadow,
			WouldHaveRefused: shadowed[l.ID]}
		from, to, ok := period(l.Window, now)
		if ok && (l.KeyID != "*" || keyID != "") {
			groups, known := spent[l.Window]
			if !known {
				sel := Selection{TenantID: tenantID, Tier: tenants.Cloud, From: from, To: to}
				groups, err = Sum(ctx, db, sel, Grouping{By: []string{"key_id", "tier", "model", "class"}}, now)
				if err != nil {
					return nil, err
				}
				spent[l.Window] = groups
			}
			u.fill(l, keyID, groups)
		}
		if ok {
			u.ResetAt = &to
		}
		out = append(out, u)
	}
	return out, nil
}

// shadowRefusals are those of a tenant's limits, by id.
func shadowRefusals(ctx context.Context, db DB, tenantID string) (map[string]int64, error) {
	out := map[string]int64{}
	rows, err := db.Query(ctx, `select limit_id, refused from weir.shadow_refusals where tenant_id = $1`, tenantID)
	if err != nil {
		return nil, fmt.Errorf("read shadow refusals: %w", err)
	}
	var id string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error { out[id] = n; return nil })
	if err != nil {
		return nil, fmt.Errorf("read shadow refusals: %w", err)
	}
	return out, nil
}

func (u *LimitUse) fill(l tenants.Limit, keyID string, groups []Group) {
	var used int64
	for _, g := range groups {
		key := l.KeyID
		if key == "*" {
			key = keyID
		}
		if (key == "" || key == g.KeyID) && (l.Model == "" || l.Model == g.Model) && (l.Tier == "" || l.Tier == g.Tier) && (l.Class == "" || l.Class == g.Class) {
			n, ok := g.of(l.Kind)
			if !ok {
				return
			}
			used += n
		}
	}
	left := max(l.Limit-used, 0)
	u.Used, u.Remaining = &used, &left
}

// of returns what a limit of the kind counts; false: not in the sums.
func (s *Sums) of(k tenants.LimitKind) (int64, bool) {
	switch k {
	case tenants.LimitRequests:
		return s.Requests, true
	case tenants.LimitInput:
		return s.InputTokens, true
	case tenants.LimitOutput:
		return s.OutputTokens, true
	case tenants.LimitTotal:
		return s.InputTokens + s.OutputTokens, true
	case tenants.LimitCost:
		return s.CostNanoUSD, true
	}
	return 0, false
}

// period returns the UTC day or month that holds a time.
func period(w tenants.LimitWindow, t time.Time) (from, to time.Time, ok bool) {
	y, m, d := t.UTC().Date()
	switch w {
	case tenants.PerDay:
		from = time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
		return from, from.AddDate(0, 0, 1), true
	case tenants.PerMonth:
		from = time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
		return from, from.AddDate(0, 1, 0), true
	}
	return from, to, false
}
