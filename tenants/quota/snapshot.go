package quota

import (
	"fmt"

	"github.com/weirhq/weir/tenants"
)

// FromSnapshot returns the limits of every tenant of a snapshot, with the
// escalation allowance of each SLO class as one more limit per tenant. Tenants
// without limits are in the map too. leased says whether budgets are granted
// by a store. The error names the first limit that makes no sense.
func FromSnapshot(s *tenants.Snapshot, leased bool) (map[string]TenantLimits, error) {
	all := make(map[string]TenantLimits, len(s.Tenants))
	for _, t := range s.Tenants {
		tl := TenantLimits{Options: Options{Leased: leased, Strict: t.Strict}}
		for _, c := range s.Classes {
			if c.EscalationsPerMinute > 0 {
				tl.Limits = append(tl.Limits, Limit{
					ID: "class/" + c.Name + "/escalations", Class: c.Name,
					Kind: Escalations, Window: Minute, Max: c.EscalationsPerMinute,
				})
			}
		}
		all[t.ID] = tl
	}
	for _, l := range s.Limits {
		tl, ok := all[l.TenantID]
		if !ok {
			return nil, fmt.Errorf("limit %s is of unknown tenant %q", l.ID, l.TenantID)
		}
		limit, err := fromSnapshot(l)
		if err != nil {
			return nil, err
		}
		tl.Limits = append(tl.Limits, limit)
		all[l.TenantID] = tl
	}
	return all, nil
}

func fromSnapshot(l tenants.Limit) (Limit, error) {
	kind, err := ParseKind(string(l.Kind))
	if err != nil {
		return Limit{}, fmt.Errorf("limit %s: %w", l.ID, err)
	}
	window, err := ParseWindow(string(l.Window))
	if err != nil {
		return Limit{}, fmt.Errorf("limit %s: %w", l.ID, err)
	}
	out := Limit{
		ID: l.ID, Key: l.KeyID, Model: l.Model, Tier: string(l.Tier), Class: l.Class,
		Kind: kind, Window: window, Max: l.Limit, Burst: l.Burst, Shadow: l.Shadow,
	}
	return out, out.Validate()
}
