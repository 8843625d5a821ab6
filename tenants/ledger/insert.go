package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/tenants"
)

// Store writes and reads the ledger. It is safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool

	mu   sync.Mutex
	days map[int64]bool // partitions known to exist, by days since 1970
}

// NewStore returns a Store on the connections of pool.
func NewStore(pool *pgxpool.Pool) *Store {
	return &Store{pool: pool, days: make(map[int64]bool)}
}

// Result counts what became of rows that were written.
type Result struct {
	Inserted   int
	Duplicates int // in the ledger already, with the same tenant and device
}

// ErrBadRow marks rows that the ledger can never hold; trying again is useless.
var ErrBadRow = errors.New("row cannot be written to the ledger")

// Insert writes rows in one transaction, all or none. A row whose attempt,
// tenant and device are in the ledger already changes nothing and counts as a
// duplicate. The error wraps ErrBadRow when a row is at fault.
func (s *Store) Insert(ctx context.Context, rows []tenants.UsageRecord) (Result, error) {
	if len(rows) == 0 {
		return Result{}, nil
	}
	c, err := columnsOf(rows)
	if err != nil {
		return Result{}, err
	}
	if err := s.ensureDays(ctx, c.days); err != nil {
		return Result{}, fmt.Errorf("write ledger: %w", err)
	}
	tag, err := s.pool.Exec(ctx, insertSQL, c.args()...)
	if err != nil {
		s.forgetDays(err)
		return Result{}, fmt.Errorf("write ledger: %w", classify(err))
	}
	n := int(tag.RowsAffected())
	return Result{Inserted: n, Duplicates: len(rows) - n}, nil
}

// classify tells errors of the data (SQLSTATE classes 22 and 23) from those of
// the database, which pass.
func classify(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || pg.Code == "23502") {
		return fmt.Errorf("%w: %w", ErrBadRow, err)
	}
	return err
}

const day = 24 * time.Hour

// dayOf returns the partition of a row: the UTC day inside a UUIDv7 attempt
// id, so that a replay meets its first copy even if its times have changed,
// else the day on which it started. An id that is far from the start is no
// time at all.
func dayOf(attempt uuid.UUID, started time.Time) time.Time {
	t := started.UTC()
	if attempt.Version() == 7 {
		sec, nsec := attempt.Time().UnixTime()
		if minted := time.Unix(sec, nsec).UTC(); minted.Sub(t).Abs() <= day {
			t = minted
		}
	}
	return t.Truncate(day)
}

// EnsureDays makes the partitions from one day to another, both included, so
// that no request has to wait for them.
func (s *Store) EnsureDays(ctx context.Context, from, to time.Time) error {
	var days []time.Time
	for d := from.UTC().Truncate(day); !d.After(to); d = d.Add(day) {
		days = append(days, d)
	}
	if err := s.ensureDays(ctx, days); err != nil {
		return fmt.Errorf("make ledger partitions: %w", err)
	}
	return nil
}

func (s *Store) ensureDays(ctx context.Context, days []time.Time) error {
	for _, d := range days {
		n := d.Unix() / int64(day/time.Second)
		s.mu.Lock()
		known := s.days[n]
		s.mu.Unlock()
		if known {
			continue
		}
		if _, err := s.pool.Exec(ctx, `select weir.ensure_usage_day($1)`, d); err != nil {
			return err
		}
		s.mu.Lock()
		s.days[n] = true
		s.mu.Unlock()
	}
	return nil
}

// forgetDays makes the next write look for its partitions again, after
// retention or a restored backup has taken one away.
func (s *Store) forgetDays(err error) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "23514" { // no partition for the row
		s.mu.Lock()
		clear(s.days)
		s.mu.Unlock()
	}
}

// insertSQL takes one array per column.
const insertSQL = `insert into weir.usage_ledger (day, attempt_id, tenant_id, device_id, operation_id, key_id, tier, model, class,
	outcome, usage_source, input_tokens, cached_tokens, output_tokens, reasoning_tokens, price_version, cost_nanousd,
	started_at, ttft_us, total_us, error_code, reason, node, node_epoch)
select * from unnest($1::date[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[],
	$10::text[], $11::text[], $12::int[], $13::int[], $14::int[], $15::int[], $16::bigint[], $17::bigint[],
	$18::timestamptz[], $19::bigint[], $20::bigint[], $21::text[], $22::text[], $23::text[], $24::text[])
on conflict do nothing`

// columns is a batch turned on its side.
type columns struct {
	days                                     []time.Time
	attempt, tenant, device, operation       [][16]byte
	key, tier, model, class, outcome, source []string
	input, cached, output, reasoning         []int32
	priceVersion, cost                       []int64
	started                                  []time.Time
	ttft, total                              []int64
	errorCode, reason, node, epoch           []string
}

func columnsOf(rows []tenants.UsageRecord) (*columns, error) {
	c := new(columns)
	for i := range rows {
		if err := c.add(&rows[i]); err != nil {
			return nil, fmt.Errorf("%w: attempt %.40q: %w", ErrBadRow, rows[i].AttemptID, err)
		}
	}
	return c, nil
}

func (c *columns) add(r *tenants.UsageRecord) error {
	var ids [4]uuid.UUID
	for i, f := range [...]struct{ name, text string }{
		{"attempt_id", r.AttemptID}, {"operation_id", r.OperationID}, {"tenant_id", r.TenantID}, {"device_id", r.DeviceID},
	} {
		if f.name == "device_id" && f.text == "" {
			continue // no device: all zero
		}
		id, err := uuid.Parse(f.text)
		if err != nil {
			return fmt.Errorf("%s is not a UUID", f.name)
		}
		ids[i] = id
	}
	for _, n := range [...]int64{r.InputTokens, r.CachedTokens, r.OutputTokens, r.ReasoningTokens} {
		if n < 0 || n > tenants.MaxRowTokens {
			return fmt.Errorf("%d tokens", n)
		}
	}
	c.days = append(c.days, dayOf(ids[0], r.StartedAt))
	c.attempt, c.operation = append(c.attempt, ids[0]), append(c.operation, ids[1])
	c.tenant, c.device = append(c.tenant, ids[2]), append(c.device, ids[3])
	c.key, c.tier = append(c.key, r.KeyID), append(c.tier, string(r.Tier))
	c.model, c.class = append(c.model, r.Model), append(c.class, r.Class)
	c.outcome, c.source = append(c.outcome, string(r.Outcome)), append(c.source, string(r.UsageSource))
	c.input, c.cached = append(c.input, int32(r.InputTokens)), append(c.cached, int32(r.CachedTokens))
	c.output, c.reasoning = append(c.output, int32(r.OutputTokens)), append(c.reasoning, int32(r.ReasoningTokens))
	c.priceVersion, c.cost = append(c.priceVersion, r.PriceVersion), append(c.cost, r.CostNanoUSD)
	c.started = append(c.started, r.StartedAt)
	c.ttft, c.total = append(c.ttft, r.TTFTMicros), append(c.total, r.TotalMicros)
	c.errorCode, c.reason = append(c.errorCode, r.ErrorCode), append(c.reason, r.Reason)
	c.node, c.epoch = append(c.node, r.Node), append(c.epoch, r.NodeEpoch)
	return nil
}

func (c *columns) args() []any {
	return []any{
		pgx.QueryExecModeCacheStatement,
		c.days, c.attempt, c.tenant, c.device, c.operation, c.key, c.tier, c.model, c.class, c.outcome, c.source,
		c.input, c.cached, c.output, c.reasoning, c.priceVersion, c.cost, c.started, c.ttft, c.total,
		c.errorCode, c.reason, c.node, c.epoch,
	}
}
