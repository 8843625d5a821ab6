package report

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// DB is what a connection, a pool and a transaction have in common.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Selection is which attempts are meant. Empty members select all.
type Selection struct {
	TenantID    string
	KeyID       string
	Model       string
	Tier        tenants.Tier
	Class       string
	Outcome     tenants.Outcome
	DeviceID    string
	OperationID string
	From, To    time.Time // To excluded
}

// Grouping says how sums are split.
type Grouping struct {
	By     []string       // of Dimensions
	Bucket string         // of Buckets; "": one sum over the whole time
	Zone   *time.Location // in which days and months begin; nil: UTC
}

// Dimensions are what sums can be split by, in their order.
var Dimensions = []string{"tenant_id", "key_id", "tier", "model", "class", "outcome"}

// Buckets are the steps of a series.
var Buckets = []string{"minute", "hour", "day", "month"}

// Sums are totals of attempts. Requests counts operations, each where it was
// answered, however many attempts it took.
type Sums struct {
	Requests        int64 `json:"requests"`
	Attempts        int64 `json:"attempts"`
	InputTokens     int64 `json:"input_tokens"`
	CachedTokens    int64 `json:"cached_tokens"`
	OutputTokens    int64 `json:"output_tokens"`
	ReasoningTokens int64 `json:"reasoning_tokens"`
	CostNanoUSD     int64 `json:"cost_nanousd"`
	Answered        int64 `json:"answered" doc:"attempts with a first token"`
	TTFTMicros      int64 `json:"ttft_us" doc:"sum over those"`
	TotalMicros     int64 `json:"total_us" doc:"sum over all attempts"`
}

// Add adds other sums.
func (s *Sums) Add(o Sums) {
	s.Requests += o.Requests
	s.Attempts += o.Attempts
	s.InputTokens += o.InputTokens
	s.CachedTokens += o.CachedTokens
	s.OutputTokens += o.OutputTokens
	s.ReasoningTokens += o.ReasoningTokens
	s.CostNanoUSD += o.CostNanoUSD
	s.Answered += o.Answered
	s.TTFTMicros += o.TTFTMicros
	s.TotalMicros += o.TotalMicros
}

// Group is the sums of one value of each dimension asked for.
type Group struct {
	At       *time.Time      `json:"at,omitempty" doc:"start of the bucket"`
	TenantID string          `json:"tenant_id,omitempty"`
	KeyID    string          `json:"key_id,omitempty"`
	Tier     tenants.Tier    `json:"tier,omitempty"`
	Model    string          `json:"model,omitempty"`
	Class    string          `json:"class,omitempty"`
	Outcome  tenants.Outcome `json:"outcome,omitempty"`
	Sums
}

// MaxGroups bounds an answer.
const MaxGroups = 10_000

// ErrTooMany says that an answer would have more than MaxGroups groups.
var ErrTooMany = errors.New("too many groups: ask for a shorter time or a coarser bucket")

// MinutesKept is for how long sums by minute are sure to be there.
const MinutesKept = 13 * 24 * time.Hour

const sumColumns = `requests, attempts, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost_nanousd, answered, ttft_us, total_us`

// A row of the ledger as a rollup of one.
const rowAsSums = `started_at as at, tenant_id, key_id, tier, model, class, outcome, (attempt <= 1 and outcome <> 'escalated')::int::bigint as requests,
	1::bigint as attempts, input_tokens::bigint, cached_tokens::bigint, output_tokens::bigint, reasoning_tokens::bigint, cost_nanousd,
	(ttft_us > 0)::int::bigint as answered, ttft_us, total_us`

// Sum adds up a selection, one Group per combination of the grouping; none is
// an empty list. The error wraps ErrTooMany when there are too many.
func Sum(ctx context.Context, db DB, sel Selection, g Grouping, now time.Time) ([]Group, error) {
	if g.Zone == nil {
		g.Zone = time.UTC
	}
	for _, d := range g.By {
		if !slices.Contains(Dimensions, d) {
			return nil, fmt.Errorf("sum usage: unknown dimension %.40q", d)
		}
	}
	if g.Bucket != "" && !slices.Contains(Buckets, g.Bucket) {
		return nil, fmt.Errorf("sum usage: unknown bucket %.40q", g.Bucket)
	}
	sql, args := sumSQL(sel, g, now)
	got, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("sum usage: %w", err)
	}
	groups, err := pgx.CollectRows(got, func(r pgx.CollectableRow) (Group, error) { return scanGroup(r, g) })
	if err != nil {
		return nil, fmt.Errorf("sum usage: %w", err)
	}
	if len(groups) > MaxGroups {
		return nil, fmt.Errorf("sum usage: %w", ErrTooMany)
	}
	return groups, nil
}

// Total is Sum without groups.
func Total(ctx context.Context, db DB, sel Selection, now time.Time) (Sums, error) {
	g, err := Sum(ctx, db, sel, Grouping{}, now)
	if err != nil || len(g) == 0 {
		return Sums{}, err
	}
	return g[0].Sums, nil
}

// binder numbers the arguments of a statement.
type binder struct{ args []any }

func (b *binder) bind(v any) string {
	b.args = append(b.args, v)
	return fmt.Sprintf("$%d", len(b.args))
}

func sumSQL(sel Selection, g Grouping, now time.Time) (string, []any) {
	var b binder
	var parts []string
	for _, s := range spans(sel.From, sel.To, now.Add(-MinutesKept), coarsest(sel, g)) {
		lo, hi := b.bind(s.lo), b.bind(s.hi)
		var part string
		switch s.source {
		case hours:
			part = `select at, tenant_id, key_id, tier, model, class, outcome, ` + sumColumns + ` from weir.usage_hour where at >= ` + lo + ` and at < ` + hi
		case minutes:
			part = `select at, tenant_id, key_id, tier, model, class, outcome, ` + sumColumns + ` from weir.usage_minute where at >= ` + lo + ` and at < ` + hi
		default:
			part = `select ` + rowAsSums + ` from weir.usage_ledger where ` + rowsBetween(lo, hi) + sel.rowFilter(&b)
		}
		parts = append(parts, part+sel.filter(&b))
	}
	if len(parts) == 0 {
		parts = append(parts, `select `+rowAsSums+` from weir.usage_ledger where false`)
	}
	dims := make([]string, 0, len(g.By)+1)
	if g.Bucket != "" {
		dims = append(dims, `date_trunc(`+b.bind(g.Bucket)+`, at, `+b.bind(g.Zone.String())+`)`)
	}
	for _, d := range g.By {
		if d == "tenant_id" {
			d = "tenant_id::text"
		}
		dims = append(dims, d)
	}
	var sums []string
	for _, c := range strings.Split(sumColumns, ", ") {
		sums = append(sums, `coalesce(sum(`+c+`), 0)::bigint`)
	}
	sql := `select ` + strings.Join(append(slices.Clone(dims), sums...), ", ") + ` from (` + strings.Join(parts, " union all ") + `) u`
	if n := len(dims); n > 0 {
		order := make([]string, n)
		for i := range order {
			order[i] = fmt.Sprint(i + 1)
		}
		by := strings.Join(order, ", ")
		sql += ` group by ` + by + ` order by ` + by
	}
	return sql + fmt.Sprintf(` limit %d`, MaxGroups+1), b.args
}

// coarsest returns the coarsest rollup that can answer.
func coarsest(sel Selection, g Grouping) source {
	switch {
	case sel.DeviceID != "" || sel.OperationID != "": // rollups do not know them
		return rows
	case g.Bucket == "minute", g.Bucket != "" && !wholeHours(sel.From, sel.To, g.Zone):
		return minutes
	}
	return hours
}

// rowsBetween selects ledger rows by their start. A row lies in the partition
// of its attempt id's day, which is at most one day off.
func rowsBetween(lo, hi string) string {
	return `day between (` + lo + `::timestamptz at time zone 'UTC')::date - 1 and (` + hi + `::timestamptz at time zone 'UTC')::date + 1
		and started_at >= ` + lo + ` and started_at < ` + hi
}

func (s *Selection) filter(b *binder) string {
	var sql strings.Builder
	if s.TenantID != "" {
		sql.WriteString(` and tenant_id = ` + b.bind(s.TenantID) + `::uuid`)
	}
	for _, f := range [...]struct{ column, value string }{
		{"key_id", s.KeyID}, {"model", s.Model}, {"tier", string(s.Tier)}, {"class", s.Class}, {"outcome", string(s.Outcome)},
	} {
		if f.value != "" {
			sql.WriteString(` and ` + f.column + ` = ` + b.bind(f.value))
		}
	}
	return sql.String()
}

// rowFilter is the part of a selection that only the ledger can answer.
func (s *Selection) rowFilter(b *binder) string {
	var sql strings.Builder
	if s.DeviceID != "" {
		sql.WriteString(` and device_id = ` + b.bind(s.DeviceID) + `::uuid`)
	}
	if s.OperationID != "" {
		sql.WriteString(` and operation_id = ` + b.bind(s.OperationID) + `::uuid`)
	}
	return sql.String()
}

func scanGroup(r pgx.CollectableRow, by Grouping) (g Group, err error) {
	var into []any
	if by.Bucket != "" {
		into = append(into, &g.At)
	}
	for _, d := range by.By {
		into = append(into, map[string]any{"tenant_id": &g.TenantID, "key_id": &g.KeyID, "tier": &g.Tier, "model": &g.Model,
			"class": &g.Class, "outcome": &g.Outcome}[d])
	}
	s := &g.Sums
	into = append(into, &s.Requests, &s.Attempts, &s.InputTokens, &s.CachedTokens, &s.OutputTokens, &s.ReasoningTokens, &s.CostNanoUSD,
		&s.Answered, &s.TTFTMicros, &s.TotalMicros)
	err = r.Scan(into...)
	if g.At != nil {
		at := g.At.In(by.Zone)
		g.At = &at
	}
	return g, err
}
