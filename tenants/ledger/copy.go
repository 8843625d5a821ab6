package ledger

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/tenants"
)

// stageColumns are the columns of a row in the order of encoder.row.
const stageColumns = `day, attempt_id, operation_id, tenant_id, device_id, key_id, tier, model, class, outcome, usage_source,
	error_code, reason, node, node_epoch, input_tokens, cached_tokens, output_tokens, reasoning_tokens, attempt,
	price_version, cost_nanousd, ttft_us, total_us, started_at`

const stageWidth = 25

// encoder writes rows in PostgreSQL's binary COPY format (the manual's page on
// COPY): a head, per row the number of fields and each with its length, an end.
type encoder struct{ b []byte }

// encode returns the whole COPY input for rows, and the days they belong to.
// The error wraps ErrBadRow.
func encode(rows []tenants.UsageRecord) ([]byte, []time.Time, error) {
	e := encoder{b: make([]byte, 0, 32+len(rows)*512)}
	e.b = append(e.b, "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	days := make([]time.Time, 0, 2)
	for i := range rows {
		d, err := e.row(&rows[i])
		if err != nil {
			return nil, nil, fmt.Errorf("%w: attempt %.40q: %w", ErrBadRow, rows[i].AttemptID, err)
		}
		if len(days) == 0 || !days[len(days)-1].Equal(d) {
			days = append(days, d)
		}
	}
	e.int16(-1)
	return e.b, days, nil
}

func (e *encoder) row(r *tenants.UsageRecord) (time.Time, error) {
	ids, err := parseIDs(r)
	if err != nil {
		return time.Time{}, err
	}
	for _, n := range [...]int64{r.InputTokens, r.CachedTokens, r.OutputTokens, r.ReasoningTokens, r.Attempt} {
		if n < 0 || n > tenants.MaxRowTokens {
			return time.Time{}, fmt.Errorf("a count of %d", n)
		}
	}
	at := dayOf(ids[0], r.StartedAt)
	e.int16(stageWidth)
	e.int32(4)
	e.int32(int32(at.Sub(epoch) / day))
	for _, id := range ids {
		e.int32(16)
		e.b = append(e.b, id[:]...)
	}
	for _, s := range [...]string{r.KeyID, string(r.Tier), r.Model, r.Class, string(r.Outcome), string(r.UsageSource), r.ErrorCode, r.Reason, r.Node, r.NodeEpoch} {
		e.int32(int32(len(s)))
		e.b = append(e.b, s...)
	}
	for _, n := range [...]int64{r.InputTokens, r.CachedTokens, r.OutputTokens, r.ReasoningTokens, r.Attempt} {
		e.int32(4)
		e.int32(int32(n))
	}
	for _, n := range [...]int64{r.PriceVersion, r.CostNanoUSD, r.TTFTMicros, r.TotalMicros, r.StartedAt.UnixMicro() - epoch.UnixMicro()} {
		e.int32(8)
		e.b = binary.BigEndian.AppendUint64(e.b, uint64(n))
	}
	return at, nil
}

// epoch is where PostgreSQL's dates and times begin.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (e *encoder) int16(v int16) { e.b = binary.BigEndian.AppendUint16(e.b, uint16(v)) }
func (e *encoder) int32(v int32) { e.b = binary.BigEndian.AppendUint32(e.b, uint32(v)) }

// parseIDs reads attempt, operation, tenant and device; no device is all zero.
func parseIDs(r *tenants.UsageRecord) (ids [4]uuid.UUID, err error) {
	for i, f := range [...]struct{ name, text string }{
		{"attempt_id", r.AttemptID}, {"operation_id", r.OperationID}, {"tenant_id", r.TenantID}, {"device_id", r.DeviceID},
	} {
		if f.name == "device_id" && f.text == "" {
			continue
		}
		if ids[i], err = uuid.Parse(f.text); err != nil {
			return ids, fmt.Errorf("%s is not a UUID", f.name)
		}
	}
	return ids, nil
}
