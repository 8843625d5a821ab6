package tenantbench

import (
	"context"
	"path/filepath"
	"time"

	"github.com/weirhq/weir/cloud/admit"
	"github.com/weirhq/weir/cloud/benchrig"
	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/rows"
	"github.com/weirhq/weir/internal/bench"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/lease"
	"github.com/weirhq/weir/tenants/ledger"
)

// rig is two gateways over one engine: one with limits, leases, queue and rows
// on disk, and one that admits everybody and records nothing.
type rig struct {
	*benchrig.Rig
	with, without string // URLs
}

func newRig(ctx context.Context, db *database, env bench.Env) (_ *rig, err error) {
	shared, err := benchrig.New(limits()...)
	if err != nil {
		return nil, err
	}
	r := &rig{Rig: shared}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	recorder, err := rows.Open(rows.Options{Dir: filepath.Join(env.Dir, "rows"), Sink: ledger.NewStore(db.pool), Log: benchrig.Log})
	if err != nil {
		return nil, err
	}
	r.Background(recorder.Run)
	r.with, err = r.Gateway(ctx, recorder, func(p *pool.Pool) (gateway.Admission, error) {
		a, err := admit.New(admit.Options{Directory: r.Directory, Pool: p, Leases: lease.NewStore(db.pool), Recovered: recorder.Recovered(),
			Gateway: lease.Gateway{Node: recorder.Node(), Epoch: "bench", Name: "bench"}, Log: benchrig.Log})
		if err == nil {
			r.Background(a.Run)
		}
		return a, err
	})
	if err != nil {
		return nil, err
	}
	r.without, err = r.Bare(ctx)
	return r, err
}

// limits are six of the tenant's.
func limits() (out []tenants.Limit) {
	for _, l := range sixLimits() {
		out = append(out, tenants.Limit{ID: l.ID, TenantID: benchrig.Tenant, KeyID: l.Key,
			Kind: tenants.LimitKind(l.Kind.String()), Window: tenants.LimitWindow(l.Window.String()), Limit: l.Max})
	}
	return out
}

// added is how much longer the median of n requests takes through the gateway
// with tenants.
func (r *rig) added(ctx context.Context, n int) (time.Duration, error) {
	without, with, err := r.InTurn(ctx, r.without, r.with, false, n)
	if err != nil {
		return 0, err
	}
	return with[n/2] - without[n/2], nil
}
