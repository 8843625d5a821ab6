package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// CloseLock is the advisory lock under which a budget's lease is closed by the
// ledger's sum: "weir" and 2. Writers of rows share it.
const CloseLock int64 = 0x77656972_00000002

// stageSQL makes the table of this connection that COPY fills. It is emptied
// with every commit.
const stageSQL = `create temporary table if not exists usage_stage (like weir.usage_ledger including defaults) on commit delete rows`

const copySQL = `copy usage_stage (` + stageColumns + `) from stdin (format binary)`

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

// moveSQL moves new rows from the stage into the ledger and adds them to the
// sums. Groups are written in the order of their keys, so that gateways that
// write at the same time wait for one another instead of deadlocking.
const moveSQL = `with ` + moveCTEs + ` select count(*) from fresh`

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

const moveCTEs = `fresh as (
	insert into weir.usage_ledger (` + stageColumns + `) select ` + stageColumns + ` from usage_stage
	on conflict do nothing
	returning tenant_id, device_id, key_id, tier, model, class, outcome, attempt, input_tokens, cached_tokens, output_tokens,
		reasoning_tokens, cost_nanousd, started_at, ttft_us, total_us, node_epoch
),
minutes as (
	select date_trunc('minute', started_at) as at, tenant_id, key_id, tier, model, class, outcome,
		sum((attempt <= 1 and outcome <> 'escalated')::int) as requests, count(*) as attempts,
		sum(input_tokens) as input_tokens, sum(cached_tokens) as cached_tokens, sum(output_tokens) as output_tokens,
		sum(reasoning_tokens) as reasoning_tokens, sum(cost_nanousd) as cost_nanousd,
		sum((ttft_us > 0)::int) as answered, sum(ttft_us) as ttft_us, sum(total_us) as total_us
	from fresh group by 1, 2, 3, 4, 5, 6, 7
),
by_minute as (
	insert into weir.usage_minute as t select * from minutes order by ` + groupKey + `
	on conflict (` + groupKey + `) do update set ` + addSums + `
),
by_hour as (
	insert into weir.usage_hour as t
	select date_trunc('hour', at at time zone 'UTC') at time zone 'UTC', tenant_id, key_id, tier, model, class, outcome,
		sum(requests), sum(attempts), sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(reasoning_tokens),
		sum(cost_nanousd), sum(answered), sum(ttft_us), sum(total_us)
	from minutes group by 1, 2, 3, 4, 5, 6, 7 order by 2, 1, 3, 4, 5, 6, 7
	on conflict (` + groupKey + `) do update set ` + addSums + `
)`

const groupKey = `tenant_id, at, key_id, tier, model, class, outcome`

const addSums = `requests = t.requests + excluded.requests, attempts = t.attempts + excluded.attempts,
	input_tokens = t.input_tokens + excluded.input_tokens, cached_tokens = t.cached_tokens + excluded.cached_tokens,
	output_tokens = t.output_tokens + excluded.output_tokens, reasoning_tokens = t.reasoning_tokens + excluded.reasoning_tokens,
	cost_nanousd = t.cost_nanousd + excluded.cost_nanousd, answered = t.answered + excluded.answered,
	ttft_us = t.ttft_us + excluded.ttft_us, total_us = t.total_us + excluded.total_us`
