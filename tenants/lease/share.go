package lease

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants/quota"
)

// Demand is what a gateway was asked for lately of one rate or number of slots.
type Demand struct {
	TenantID string
	LimitID  string
	Key      string
	Asked    int64
	Max      int64 // the limit
	Burst    int64 // rates only
}

// Share answers the Demand at the same place.
type Share struct{ Max, Burst int64 }

// alive is how long after its last message a gateway counts, and its shares
// are left to it.
const alive = 5 * time.Second

// Peers says that a gateway is alive and returns how many are, itself included.
func (s *Store) Peers(ctx context.Context, g Gateway) (n int, err error) {
	err = s.pool.QueryRow(ctx, `with me as (
			insert into weir.gateways (epoch, node, name, seen_at) values ($1, $2, $3, now())
			on conflict (epoch) do update set seen_at = excluded.seen_at
		)
		select 1 + count(*) from weir.gateways where epoch <> $1 and seen_at > now() - $4::interval`,
		g.Epoch, g.Node, g.Name, alive).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("report gateway: %w", err)
	}
	return n, nil
}

// Leave says that a gateway ends, so that the others need not wait for its
// silence.
func (s *Store) Leave(ctx context.Context, g Gateway) error {
	_, err := s.pool.Exec(ctx, `with a as (delete from weir.rate_shares where epoch = $1) delete from weir.gateways where epoch = $1`, g.Epoch)
	if err != nil {
		return fmt.Errorf("gateway leaves: %w", err)
	}
	return nil
}

// Divide sets the gateway's shares of limits by what all gateways were asked
// for lately. A share takes what another still holds only up to the even part
// of a tenth that everybody is due, so that a gateway which comes anew refuses
// nobody meanwhile: the shares of one limit sum to at most the limit, and a
// tenth of it until the others have refreshed theirs.
func (s *Store) Divide(ctx context.Context, g Gateway, demands []Demand) ([]Share, error) {
	out := make([]Share, len(demands))
	order := make([]int, len(demands))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := &demands[a], &demands[b]
		return cmp.Or(cmp.Compare(x.TenantID, y.TenantID), cmp.Compare(x.LimitID, y.LimitID), cmp.Compare(x.Key, y.Key))
	})
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		held, err := othersShares(ctx, tx, g, demands, order)
		if err != nil {
			return err
		}
		var b pgx.Batch
		for _, i := range order {
			d := &demands[i]
			out[i] = divide(d, held[i])
			b.Queue(`insert into weir.rate_shares (tenant_id, limit_id, key_id, epoch, demand, max, burst, seen_at) values ($1, $2, $3, $4, $5, $6, $7, now())
				on conflict (tenant_id, limit_id, key_id, epoch) do update set demand = excluded.demand, max = excluded.max, burst = excluded.burst, seen_at = excluded.seen_at`,
				d.TenantID, d.LimitID, d.Key, g.Epoch, d.Asked, out[i].Max, out[i].Burst)
		}
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("divide rates: %w", err)
	}
	return out, nil
}

// holder is another gateway's row of a limit.
type holder struct{ Demand, Max, Burst int64 }

// othersShares locks the limits and reads what other live gateways hold.
func othersShares(ctx context.Context, tx pgx.Tx, g Gateway, demands []Demand, order []int) ([][]holder, error) {
	held := make([][]holder, len(demands))
	var b pgx.Batch
	for _, i := range order {
		d := &demands[i]
		b.Queue(`select pg_advisory_xact_lock(hashtextextended($1 || '/' || $2 || '/' || $3, 7))`, d.TenantID, d.LimitID, d.Key)
	}
	for _, i := range order {
		d := &demands[i]
		b.Queue(`select demand, max, burst from weir.rate_shares
			where (tenant_id, limit_id, key_id) = ($1, $2, $3) and epoch <> $4 and seen_at > now() - $5::interval order by epoch`,
			d.TenantID, d.LimitID, d.Key, g.Epoch, alive).Query(func(rows pgx.Rows) (err error) {
			held[i], err = pgx.CollectRows(rows, pgx.RowToStructByPos[holder])
			return err
		})
	}
	return held, tx.SendBatch(ctx, &b).Close()
}

// divide is this gateway's part, within what the others leave.
func divide(d *Demand, others []holder) Share {
	demand := make([]int64, 1, 1+len(others))
	demand[0] = d.Asked
	free := Share{d.Max, d.Burst}
	for _, o := range others {
		demand = append(demand, o.Demand)
		free.Max -= o.Max
		free.Burst -= o.Burst
	}
	part := func(total, free int64) int64 {
		return max(min(quota.Split(total, demand)[0], free), total/10/int64(len(demand)), 0)
	}
	return Share{Max: part(d.Max, free.Max), Burst: part(d.Burst, free.Burst)}
}
