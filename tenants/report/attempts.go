package report

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

// ErrBadCursor says that a cursor is none of ours.
var ErrBadCursor = errors.New("not a cursor of this list")

// MaxAttempts bounds a page.
const MaxAttempts = 1000

const recordColumns = `attempt_id::text, operation_id::text, tenant_id::text, key_id, device_id::text, tier, model, class, outcome,
	usage_source, input_tokens, cached_tokens, output_tokens, reasoning_tokens, price_version, cost_nanousd, started_at, ttft_us,
	total_us, error_code, reason, node, node_epoch, attempt`

// Attempts returns one page of a selection, newest first, and the cursor of
// the next one; "" when there is none. The error wraps ErrBadCursor when after
// is at fault.
func Attempts(ctx context.Context, db DB, sel Selection, after string, limit int) ([]tenants.UsageRecord, string, error) {
	if limit <= 0 || limit > MaxAttempts {
		limit = MaxAttempts
	}
	var from *place
	if after != "" {
		at, id, err := readCursor(after)
		if err != nil {
			return nil, "", fmt.Errorf("list attempts: %w", err)
		}
		from = &place{at, id}
		if end := at.Add(time.Microsecond); end.Before(sel.To) {
			sel.To = end
		}
	}
	recs := []tenants.UsageRecord{}
	for _, s := range sel.windows() {
		got, err := attempts(ctx, db, s, from, limit-len(recs))
		if err != nil {
			return nil, "", fmt.Errorf("list attempts: %w", err)
		}
		if recs = append(recs, got...); len(recs) == limit {
			return recs, cursorAfter(recs[limit-1]), nil
		}
	}
	return recs, "", nil
}

// place is where a page begins.
type place struct {
	at time.Time
	id uuid.UUID
}

// windows cuts the time of a selection, newest part first and each twice as
// long as the one before. The ledger's index begins with the tenant: without
// one, the newest rows of a long time would be found only by sorting all.
func (s Selection) windows() []Selection {
	if s.TenantID != "" {
		return []Selection{s}
	}
	var out []Selection
	for part := s; s.From.Before(part.To); part.To = part.From {
		part.From = part.To.Add(-time.Hour << min(len(out), 20))
		if part.From.Before(s.From) {
			part.From = s.From
		}
		out = append(out, part)
	}
	return out
}

func attempts(ctx context.Context, db DB, sel Selection, from *place, limit int) ([]tenants.UsageRecord, error) {
	var b binder
	where := rowsBetween(b.bind(sel.From), b.bind(sel.To)) + sel.filter(&b) + sel.rowFilter(&b)
	if from != nil {
		where += ` and (started_at, attempt_id) < (` + b.bind(from.at) + `, ` + b.bind(from.id) + `)`
	}
	got, err := db.Query(ctx, `select `+recordColumns+` from weir.usage_ledger where `+where+
		` order by started_at desc, attempt_id desc limit `+b.bind(limit), b.args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(got, scanRecord)
}

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

func readCursor(s string) (time.Time, uuid.UUID, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return time.Time{}, uuid.Nil, ErrBadCursor
	}
	at, id, _ := strings.Cut(string(b), " ")
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return time.Time{}, uuid.Nil, ErrBadCursor
	}
	u, err := uuid.Parse(id)
	if err != nil {
		return time.Time{}, uuid.Nil, ErrBadCursor
	}
	return t, u, nil
}
