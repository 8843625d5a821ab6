package ledger

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// Query selects rows by their start, From included and To not. Empty ids
// select all.
type Query struct {
	TenantID string
	KeyID    string
	DeviceID string
	// OperationID selects the attempts of one request.
	OperationID string
	From, To    time.Time
	Limit       int    // rows; 0: none, only sums
	After       string // Report.Next of the page before
}

// Report is what GET usage answers: sums over the whole selection, and a page
// of its rows, newest first.
type Report struct {
	From   time.Time             `json:"from"`
	To     time.Time             `json:"to"`
	Totals Totals                `json:"totals"`
	Groups []Group               `json:"groups"`
	Rows   []tenants.UsageRecord `json:"rows"`
	Next   string                `json:"next,omitempty"` // cursor of the next page
}

// Totals are sums over rows. Requests counts operations, however many attempts
// each took; an operation that used several models or tiers counts in each group.
type Totals struct {
	Requests        int64 `json:"requests"`
	Attempts        int64 `json:"attempts"`
	InputTokens     int64 `json:"input_tokens"`
	CachedTokens    int64 `json:"cached_tokens"`
	OutputTokens    int64 `json:"output_tokens"`
	ReasoningTokens int64 `json:"reasoning_tokens"`
	CostNanoUSD     int64 `json:"cost_nanousd"`
}

// Group is the sums of one tier and model.
type Group struct {
	Tier  tenants.Tier `json:"tier"`
	Model string       `json:"model"`
	Totals
}

// ErrBadCursor says that Query.After is not a cursor of ours.
var ErrBadCursor = errors.New("not a cursor of this list")

// maxRows bounds a page.
const maxRows = 1000

// where selects by tenant, key, device, operation and time. The days are those that a
// row of the time span can lie in: see dayOf.
const where = ` where day between ($4::timestamptz at time zone 'UTC')::date - 1 and ($5::timestamptz at time zone 'UTC')::date + 1
	and started_at >= $4 and started_at < $5
	and ($6 = '' or operation_id = nullif($6, '')::uuid)
	and ($1 = '' or tenant_id = nullif($1, '')::uuid) and ($2 = '' or key_id = $2) and ($3 = '' or device_id = nullif($3, '')::uuid)`

const sums = `count(distinct operation_id), count(*), coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(cached_tokens), 0)::bigint,
	coalesce(sum(output_tokens), 0)::bigint, coalesce(sum(reasoning_tokens), 0)::bigint, coalesce(sum(cost_nanousd), 0)::bigint`

// Usage answers a query, sums and rows as of one moment. The error wraps
// ErrBadCursor when After is at fault.
func (s *Store) Usage(ctx context.Context, q Query) (Report, error) {
	for _, id := range []string{q.TenantID, q.DeviceID, q.OperationID} {
		if _, err := uuid.Parse(id); id != "" && err != nil {
			return Report{}, fmt.Errorf("read ledger: %.40q is not a UUID", id)
		}
	}
	at, id, err := q.cursor()
	if err != nil {
		return Report{}, fmt.Errorf("read ledger: %w", err)
	}
	r := Report{From: q.From.UTC(), To: q.To.UTC(), Groups: []Group{}, Rows: []tenants.UsageRecord{}}
	args := []any{q.TenantID, q.KeyID, q.DeviceID, q.From, q.To, q.OperationID}
	o := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, s.pool, o, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select `+sums+` from weir.usage_ledger`+where, args...).Scan(r.Totals.into()...); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `select tier, model, `+sums+` from weir.usage_ledger`+where+` group by tier, model order by tier, model`, args...)
		if err != nil {
			return err
		}
		if r.Groups, err = pgx.CollectRows(rows, scanGroup); err != nil || q.Limit <= 0 {
			return err
		}
		rows, err = tx.Query(ctx, `select `+recordColumns+` from weir.usage_ledger`+where+`
			and ($7::timestamptz is null or (started_at, attempt_id) < ($7, $8))
			order by started_at desc, attempt_id desc limit $9`, append(args, at, id, min(q.Limit, maxRows))...)
		if err != nil {
			return err
		}
		r.Rows, err = pgx.CollectRows(rows, scanRecord)
		return err
	})
	if err != nil {
		return Report{}, fmt.Errorf("read ledger: %w", err)
	}
	if n := len(r.Rows); n > 0 && n == min(q.Limit, maxRows) {
		r.Next = cursorAfter(r.Rows[n-1])
	}
	return r, nil
}

func (t *Totals) into() []any {
	return []any{&t.Requests, &t.Attempts, &t.InputTokens, &t.CachedTokens, &t.OutputTokens, &t.ReasoningTokens, &t.CostNanoUSD}
}

func scanGroup(r pgx.CollectableRow) (g Group, err error) {
	err = r.Scan(append([]any{&g.Tier, &g.Model}, g.Totals.into()...)...)
	return g, err
}

const recordColumns = `attempt_id::text, operation_id::text, tenant_id::text, key_id, device_id::text, tier, model, class, outcome,
	usage_source, input_tokens, cached_tokens, output_tokens, reasoning_tokens, price_version, cost_nanousd, started_at, ttft_us,
	total_us, error_code, reason, node, node_epoch, attempt`

func scanRecord(row pgx.CollectableRow) (r tenants.UsageRecord, err error) {
	err = row.Scan(&r.AttemptID, &r.OperationID, &r.TenantID, &r.KeyID, &r.DeviceID, &r.Tier, &r.Model, &r.Class, &r.Outcome,
		&r.UsageSource, &r.InputTokens, &r.CachedTokens, &r.OutputTokens, &r.ReasoningTokens, &r.PriceVersion, &r.CostNanoUSD,
		&r.StartedAt, &r.TTFTMicros, &r.TotalMicros, &r.ErrorCode, &r.Reason, &r.Node, &r.NodeEpoch, &r.Attempt)
	r.StartedAt = r.StartedAt.UTC()
	if r.DeviceID == uuid.Nil.String() {
		r.DeviceID = ""
	}
	return r, err
}

func cursorAfter(r tenants.UsageRecord) string {
	return base64.RawURLEncoding.EncodeToString([]byte(r.StartedAt.Format(time.RFC3339Nano) + " " + r.AttemptID))
}

// cursor reads After; both results are nil without one.
func (q Query) cursor() (*time.Time, *uuid.UUID, error) {
	if q.After == "" {
		return nil, nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(q.After)
	if err != nil {
		return nil, nil, ErrBadCursor
	}
	at, id, _ := strings.Cut(string(b), " ")
	t, err1 := time.Parse(time.RFC3339Nano, at)
	u, err2 := uuid.Parse(id)
	if err1 != nil || err2 != nil {
		return nil, nil, ErrBadCursor
	}
	return &t, &u, nil
}
