package admit

import (
	"context"
	"time"

	"github.com/weirhq/weir/tenants/lease"
	"github.com/weirhq/weir/tenants/quota"
)

// fade is the part of the demand of the second before that still counts: one
// busy second must not turn shares over.
const fade = 0.5

// share divides rates and slots with the other gateways. A gateway that is
// alone takes all without asking.
func (g *agent) share(ctx context.Context, now time.Time) error {
	peers, err := g.a.o.Leases.Peers(ctx, g.a.o.Gateway)
	if err != nil {
		return err
	}
	if g.peers.Swap(int64(peers)) != int64(peers) {
		g.a.book.SetPeers(peers)
	}
	demands := g.demands()
	if peers == 1 {
		if g.divided {
			g.divided = false
			for _, d := range demands {
				g.apply(&d, lease.Share{Max: d.Max, Burst: d.Burst}, now)
			}
		}
		return nil
	}
	g.divided = true
	for len(demands) > 0 {
		n := min(len(demands), newsAtOnce)
		shares, err := g.a.o.Leases.Divide(ctx, g.a.o.Gateway, demands[:n])
		if err != nil {
			return err
		}
		now = time.Now()
		for i := range shares {
			g.apply(&demands[i], shares[i], now)
		}
		demands = demands[n:]
	}
	return nil
}

func (g *agent) apply(d *lease.Demand, s lease.Share, now time.Time) {
	if a := g.a.book.Account(d.TenantID); a != nil {
		a.ApplyShare(quota.Share{LimitID: d.LimitID, Key: d.Key, Max: s.Max, Burst: s.Burst}, now)
	}
}

// demands returns the smoothed demand for every rate and number of slots that
// was ever asked for.
func (g *agent) demands() []lease.Demand {
	r := g.a.rules.Load()
	if r == nil {
		return nil
	}
	var out []lease.Demand
	seen := make(map[demandKey]float64, len(g.demand))
	g.a.book.All(func(tenant string, a *quota.Account) {
		for _, d := range a.Demands(nil) {
			l := limitOf(r.limits[tenant].Limits, d.LimitID)
			if l == nil {
				continue
			}
			k := demandKey{tenant, d.LimitID, d.Key}
			seen[k] = g.demand[k]*fade + float64(d.Asked)
			burst := l.Burst
			if burst == 0 {
				burst = l.Max
			}
			out = append(out, lease.Demand{TenantID: tenant, LimitID: d.LimitID, Key: d.Key, Asked: int64(seen[k]), Max: l.Max, Burst: burst})
		}
	})
	g.demand = seen
	return out
}
