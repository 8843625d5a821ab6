// Package lease keeps in PostgreSQL what gateways hold of budgets and how they
// share rates and slots. The rules are tenants/quota's; this package stores
// its values and locks a budget's row around each of them.
package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/tenants/ledger"
	"github.com/weirhq/weir/tenants/quota"
)

// Store is safe for concurrent use.
type Store struct{ pool *pgxpool.Pool }

// NewStore returns a Store on the connections of pool.
func NewStore(pool *pgxpool.Pool) *Store { return &Store{pool} }

// Gateway is one gateway process. Node stays the same when it restarts on the
// same files; Epoch does not. Name is for people.
type Gateway struct{ Node, Epoch, Name string }

// News is what a gateway tells of one budget of a tenant.
type News struct {
	TenantID string
	Limit    quota.Limit // which rows the budget counts
	quota.LeaseNews
}

// Reply answers the News at the same place. Closed is set when the lease was
// closed under its holder.
type Reply struct {
	quota.LeaseReply
	Closed *quota.ClosedLease
}

// Renew takes in a gateway's news and grants what it asks for, all in one
// transaction.
func (s *Store) Renew(ctx context.Context, g Gateway, news []News) ([]Reply, error) {
	out := make([]Reply, len(news))
	order := make([]int, len(news))
	for i := range order {
		order[i] = i
	}
	// Every gateway locks budgets in the same order.
	slices.SortFunc(order, func(a, b int) int { return compare(&news[a], &news[b]) })
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		budgets, err := lock(ctx, tx, news, order)
		if err != nil {
			return err
		}
		var writes pgx.Batch
		for _, i := range order {
			renew(&writes, g, &news[i], budgets[i], &out[i])
		}
		return tx.SendBatch(ctx, &writes).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("renew budget leases: %w", err)
	}
	return out, nil
}

func compare(a, b *News) int {
	return cmp.Or(cmp.Compare(a.TenantID, b.TenantID), cmp.Compare(a.Budget.LimitID, b.Budget.LimitID),
		cmp.Compare(a.Budget.Key, b.Budget.Key), cmp.Compare(a.Budget.Window, b.Budget.Window), cmp.Compare(a.Budget.Period, b.Budget.Period))
}

func (n *News) key() []any {
	return []any{n.TenantID, n.Budget.LimitID, n.Budget.Key, n.Budget.Window.String(), int32(n.Budget.Period)}
}

const lockSQL = `insert into weir.budgets as b (tenant_id, limit_id, key_id, window_, period, max, kind, match_key, match_model, match_tier, match_class)
	values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
	on conflict (tenant_id, limit_id, key_id, window_, period) do update set max = excluded.max, kind = excluded.kind,
		match_key = excluded.match_key, match_model = excluded.match_model, match_tier = excluded.match_tier, match_class = excluded.match_class
	returning closed`

const leasesSQL = `select node, epoch, generation, granted, returned, used, reserved, expires_at, final from weir.budget_leases
	where (tenant_id, limit_id, key_id, window_, period) = ($1, $2, $3, $4, $5)`

// lock locks the budgets, made where they are new, and reads them with their
// leases.
func lock(ctx context.Context, tx pgx.Tx, news []News, order []int) ([]quota.Budget, error) {
	budgets := make([]quota.Budget, len(news))
	var b pgx.Batch
	for _, i := range order {
		n, l := &news[i], &news[i].Limit
		budgets[i].Max = n.Max
		b.Queue(lockSQL, append(n.key(), n.Max, l.Kind.String(), l.Key, l.Model, l.Tier, l.Class)...).QueryRow(func(row pgx.Row) error {
			return row.Scan(&budgets[i].Closed)
		})
	}
	// After the locks, so that each query sees what the lock has waited for.
	for _, i := range order {
		b.Queue(leasesSQL, news[i].key()...).Query(func(rows pgx.Rows) (err error) {
			budgets[i].Leases, err = pgx.CollectRows(rows, scanLease)
			return err
		})
	}
	return budgets, tx.SendBatch(ctx, &b).Close()
}

func scanLease(r pgx.CollectableRow) (l quota.Lease, err error) {
	err = r.Scan(&l.Node, &l.Epoch, &l.Generation, &l.Granted, &l.Returned, &l.Used, &l.Reserved, &l.ExpiresAt, &l.Final)
	return l, err
}

const writeSQL = `insert into weir.budget_leases (tenant_id, limit_id, key_id, window_, period, node, epoch, generation,
		granted, returned, used, reserved, expires_at, final)
	values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, now() + $13, false)
	on conflict (tenant_id, limit_id, key_id, window_, period, epoch, generation) do update set
		granted = excluded.granted, returned = excluded.returned, used = excluded.used, reserved = excluded.reserved, expires_at = excluded.expires_at`

// renew applies one message to a locked budget and queues the lease's new row.
func renew(writes *pgx.Batch, g Gateway, n *News, b quota.Budget, out *Reply) {
	h := quota.Holder{Node: g.Node, Epoch: g.Epoch, Generation: n.Generation}
	rule := quota.DefaultBlocks(b.Max)
	reply, err := b.Renew(h, n.LeaseRequest, rule, time.Time{}) // the database's clock sets the expiry
	if closed := (*quota.ClosedLease)(nil); errors.As(err, &closed) {
		out.Closed = closed
		// The successor's row stands at once: rows of this process that reach
		// the ledger from now on are its own to report.
		h.Generation++
		writes.Queue(writeSQL, append(n.key(), h.Node, h.Epoch, h.Generation, 0, 0, 0, 0, rule.TTL)...)
		return
	}
	out.LeaseReply = reply
	for i := range b.Leases {
		if l := &b.Leases[i]; l.Holder == h {
			writes.Queue(writeSQL, append(n.key(), h.Node, h.Epoch, h.Generation, l.Granted, l.Returned, l.Used, l.Reserved, rule.TTL)...)
		}
	}
}

// Recover closes the leases of a node's earlier processes by the ledger's sums
// and returns how many it closed. Call it when the ledger holds all their rows.
func (s *Store) Recover(ctx context.Context, g Gateway) (int, error) {
	return s.close(ctx, `node = $1 and epoch <> $2`, true, g.Node, g.Epoch)
}

// CloseExpired closes leases that ended longer than grace ago: their node has
// not come back. Rows that it still brings correct the count.
func (s *Store) CloseExpired(ctx context.Context, grace time.Duration) (int, error) {
	return s.close(ctx, `expires_at < now() - $1::interval`, false, grace)
}

func (s *Store) close(ctx context.Context, which string, exact bool, args ...any) (closed int, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, ledger.CloseLock); err != nil {
			return err
		}
		var epochs []string
		err := tx.QueryRow(ctx, `with victims as (
				select tenant_id, limit_id, key_id, window_, period, epoch, generation from weir.budget_leases where not final and `+which+`
			), locked as (
				select b.tenant_id, b.limit_id, b.key_id, b.window_, b.period from weir.budgets b
				where (tenant_id, limit_id, key_id, window_, period) in (select tenant_id, limit_id, key_id, window_, period from victims)
				order by 1, 2, 3, 4, 5 for update
			), finals as (
				update weir.budget_leases l set final = true, reserved = 0 from victims v, locked k
				where (l.tenant_id, l.limit_id, l.key_id, l.window_, l.period, l.epoch, l.generation) =
					(v.tenant_id, v.limit_id, v.key_id, v.window_, v.period, v.epoch, v.generation)
				and (k.tenant_id, k.limit_id, k.key_id, k.window_, k.period) = (l.tenant_id, l.limit_id, l.key_id, l.window_, l.period)
				and not l.final
				returning l.*
			), moved as (
				update weir.budgets b set closed = b.closed + f.used
				from (select tenant_id, limit_id, key_id, window_, period, sum(used) as used from finals group by 1, 2, 3, 4, 5) f
				where (b.tenant_id, b.limit_id, b.key_id, b.window_, b.period) = (f.tenant_id, f.limit_id, f.key_id, f.window_, f.period)
			)
			select count(*), coalesce(array_agg(distinct epoch), '{}') from finals`, args...).Scan(&closed, &epochs)
		if err != nil || closed == 0 && !exact {
			return err
		}
		if exact { // leases that were closed by what had been reported become exact, too
			if err := tx.QueryRow(ctx, `select coalesce(array_agg(distinct epoch), '{}') from weir.budget_leases where `+which, args...).Scan(&epochs); err != nil {
				return err
			}
		}
		return ledger.Recount(ctx, tx, epochs, exact)
	})
	if err != nil {
		return 0, fmt.Errorf("close budget leases: %w", err)
	}
	return closed, nil
}

// Sweep deletes budgets of periods that ended 90 days ago or earlier, whose
// rows can no longer come, and gateways that are gone.
func (s *Store) Sweep(ctx context.Context, now time.Time) error {
	old := now.Add(-92 * 24 * time.Hour)
	_, err := s.pool.Exec(ctx, `delete from weir.budgets where window_ = 'day' and period < $1 or window_ = 'month' and period < $2`,
		int32(quota.PeriodAt(quota.Day, old)), int32(quota.PeriodAt(quota.Month, old)))
	if err == nil {
		_, err = s.pool.Exec(ctx, `delete from weir.gateways where seen_at < now() - interval '1 hour'`)
	}
	if err == nil {
		_, err = s.pool.Exec(ctx, `delete from weir.rate_shares where seen_at < now() - interval '1 minute'`)
	}
	if err != nil {
		return fmt.Errorf("sweep budgets: %w", err)
	}
	return nil
}
