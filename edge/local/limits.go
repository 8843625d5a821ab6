package local

import (
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/roster"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/quota"
	"github.com/weirhq/weir/tenants/refusal"
)

// limits holds this device's own counters for those of its tenant's limits that
// devices keep (quota.OnDevice), by the snapshot in use.
type limits struct {
	mu      sync.Mutex
	view    *roster.View
	account *quota.Account
}

// follow returns the account, nil while nothing is limited. Limits that make
// no sense are told and the former ones stay.
func (l *limits) follow(view *roster.View, tenant string, now time.Time) (*quota.Account, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if view == nil || view == l.view {
		return l.account, nil
	}
	l.view = view
	all, err := quota.FromSnapshot(view.Snapshot(), false)
	if err != nil {
		return l.account, err
	}
	kept := quota.OnDevice(all[tenant].Limits)
	if l.account != nil {
		return l.account, l.account.Update(kept, now)
	}
	if len(kept) > 0 {
		l.account, err = quota.NewAccount(kept, quota.Options{}, now)
	}
	return l.account, err
}

// admit reserves the local answer by the tenant's limits.
func (f *flight) admit() error {
	s, c, now := f.s, f.c, f.s.opt.Now()
	account, err := s.limits.follow(s.opt.Roster.View(), s.opt.TenantID, now)
	if err != nil {
		s.opt.Log.Error("limits of the snapshot refused, former ones stay", "error", err)
	}
	if account == nil {
		return nil
	}
	r := quota.Request{Key: c.KeyID, Model: s.opt.Model, Tier: string(tenants.Edge), Class: c.class, Amount: quota.Amount{Requests: 1}}
	v := account.Admit(&r, now, &f.slot)
	s.metrics.countShadow(account)
	header := http.Header{}
	refusal.SetHeaders(header, account.Status(&r, now, nil))
	f.out.setHeader(header)
	if v.OK() {
		return nil
	}
	c.outcome, c.result.Reason = tenants.OutcomeRejected, cascade.ReasonBudget
	return refusal.Error(v)
}

func (m *metrics) countShadow(account *quota.Account) {
	shadowed := map[string]int64{}
	account.Shadowed(shadowed)
	for _, n := range shadowed {
		m.shadowed.Add(float64(n))
	}
}

// free ends the reservation, before the answer's last byte leaves: a client
// that comes back at once finds the slot. What never ran is not counted.
func (f *flight) free() {
	if f.c.edgeRuns == 0 {
		f.slot.Release(f.s.opt.Now())
		return
	}
	f.slot.Settle(quota.Amount{}, f.s.opt.Now())
}
