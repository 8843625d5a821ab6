package quota

import (
	"errors"
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
		all[t.ID] = TenantLimits{Options: Options{Leased: leased, Strict: t.Strict}}
		for i := range s.Classes {
			if l, ok := s.Classes[i].Allowance(t.ID); ok {
				if err := addLimit(all, l); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, l := range s.Limits {
		if err := addLimit(all, l); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func addLimit(all map[string]TenantLimits, l tenants.Limit) error {
	tl, ok := all[l.TenantID]
	if !ok {
		return fmt.Errorf("limit %s is of unknown tenant %q", l.ID, l.TenantID)
	}
	limit, err := fromSnapshot(l)
	if err != nil {
		return err
	}
	tl.Limits = append(tl.Limits, limit)
	all[l.TenantID] = tl
	return nil
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

// OnDevice returns the limits that each edge device keeps, for the answers of
// its own model: requests per minute, and requests at once. Edge tokens consume
// no limits, and budgets have one owner, the cloud.
func OnDevice(all []Limit) []Limit {
	var out []Limit
	for _, l := range all {
		if l.OnDevice() == nil && l.Tier != string(tenants.Cloud) {
			out = append(out, l)
		}
	}
	return out
}

var errNotOnDevice = errors.New("a device limits requests per minute and concurrent requests only")

// OnDevice says why a device cannot keep a limit of this kind; nil: it can.
func (l *Limit) OnDevice() error {
	if l.Kind == Concurrent || l.Kind == Requests && l.Window == Minute {
		return nil
	}
	return errNotOnDevice
}
