package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// CloseLock is the advisory lock under which a budget's lease is closed by the
// ledger's sum: "weir" and 2. Writers of rows share it.
const CloseLock int64 = 0x77656972_00000002

// missingSQL finds which of the keys $1 to $4 the ledger lacks, and which it
// holds for other work than that of $5 and $6, each by its index: limit keeps
// the planner from reading whole partitions.
const missingSQL = `select r.ord, u.node_epoch is not null
	from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::date[], $5::timestamptz[], $6::text[])
		with ordinality as r (attempt_id, tenant_id, device_id, day, started_at, node_epoch, ord)
	left join lateral (
		select node_epoch, started_at from weir.usage_ledger u
		where (u.attempt_id, u.tenant_id, u.device_id, u.day) = (r.attempt_id, r.tenant_id, r.device_id, r.day) limit 1
	) u on true
	where u.node_epoch is null or (u.node_epoch, u.started_at) <> (r.node_epoch, r.started_at) order by r.ord`

// counted is what a ledger row f counts in a budget of the kind b.kind. Only
// rows of the cloud count: an edge's tokens are its owner's.
const counted = `case b.kind when 'requests' then (f.attempt <= 1)::int
	when 'escalations' then (f.attempt <= 1 and f.device_id <> '00000000-0000-0000-0000-000000000000')::int
	when 'input_tokens' then f.input_tokens when 'output_tokens' then f.output_tokens
	when 'total_tokens' then f.input_tokens::bigint + f.output_tokens
	when 'cost_nanousd' then f.cost_nanousd else 0 end`

// matches says whether a ledger row f belongs to a budget b of its tenant.
const matches = `f.tier = 'cloud' and (b.match_key in ('', '*') or b.match_key = f.key_id) and (b.key_id = '' or b.key_id = f.key_id)
	and (b.match_model = '' or b.match_model = f.model) and (b.match_tier = '' or b.match_tier = f.tier)
	and (b.match_class = '' or b.match_class = f.class)
	and b.period = case b.window_ when 'day' then floor(extract(epoch from f.started_at) / 86400)::int
		else (extract(year from f.started_at at time zone 'UTC') * 12 + extract(month from f.started_at at time zone 'UTC') - 23641)::int end`

// recountSQL sets what closed leases of the processes $1 count to the ledger's
// sum; without $2 only where that is more. Leases of a process that still holds
// another one on the budget are left to it.
const recountSQL = `with l as (
	select tenant_id, limit_id, key_id, window_, period, epoch, max(generation) as generation, sum(used) as used
	from weir.budget_leases where epoch = any($1) group by 1, 2, 3, 4, 5, 6 having bool_and(final)
),
diffs as (
	select l.*, s.n - l.used as diff from l
	join weir.budgets b on (b.tenant_id, b.limit_id, b.key_id, b.window_, b.period) = (l.tenant_id, l.limit_id, l.key_id, l.window_, l.period)
	cross join lateral (
		select coalesce(sum(` + counted + `), 0) as n from weir.usage_ledger f
		where f.tenant_id = l.tenant_id and f.node_epoch = l.epoch and f.started_at >= case b.window_
			when 'day' then to_timestamp(b.period * 86400.0) else make_timestamptz(1970 + b.period / 12, b.period % 12 + 1, 1, 0, 0, 0, 'UTC') end
		and ` + matches + `
	) s
	where s.n > l.used or $2 and s.n < l.used
),
leases as (
	update weir.budget_leases l set used = l.used + d.diff from diffs d
	where (l.tenant_id, l.limit_id, l.key_id, l.window_, l.period, l.epoch, l.generation) =
		(d.tenant_id, d.limit_id, d.key_id, d.window_, d.period, d.epoch, d.generation)
)
update weir.budgets b set closed = b.closed + d.diff
from (select tenant_id, limit_id, key_id, window_, period, sum(diff) as diff from diffs group by 1, 2, 3, 4, 5) d
where (b.tenant_id, b.limit_id, b.key_id, b.window_, b.period) = (d.tenant_id, d.limit_id, d.key_id, d.window_, d.period)`

// Recount makes budgets count what the ledger holds of the rows of processes
// whose leases are closed; exact also lowers counts. The caller holds CloseLock.
func Recount(ctx context.Context, tx pgx.Tx, epochs []string, exact bool) error {
	if _, err := tx.Exec(ctx, recountSQL, epochs, exact); err != nil {
		return fmt.Errorf("recount budgets: %w", err)
	}
	return nil
}
