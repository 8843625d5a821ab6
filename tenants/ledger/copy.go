package ledger

import (
	"encoding/binary"

	"github.com/google/uuid"
)

// rowColumns are the columns of a row in the order of encoder.row.
const rowColumns = `day, attempt_id, operation_id, tenant_id, device_id, key_id, tier, model, class, outcome, usage_source,
	error_code, reason, node, node_epoch, input_tokens, cached_tokens, output_tokens, reasoning_tokens, attempt,
	price_version, cost_nanousd, ttft_us, total_us, started_at`

const rowWidth = 25

// encoder writes rows in PostgreSQL's binary COPY format (the manual's page on
// COPY): a head, per row the number of fields and each with its length, an end.
type encoder struct{ b []byte }

// encode returns the whole COPY input.
func encode(lines []line) []byte {
	e := encoder{b: make([]byte, 0, 32+len(lines)*512)}
	e.b = append(e.b, "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	for i := range lines {
		e.row(&lines[i])
	}
	e.int16(-1)
	return e.b
}

func (e *encoder) row(l *line) {
	r := l.row
	e.int16(rowWidth)
	e.int32(4)
	e.int32(int32(l.day.Sub(epoch) / day))
	for _, id := range [...]*uuid.UUID{&l.attempt, &l.operation, &l.tenant, &l.device} {
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
}

func (e *encoder) int16(v int16) { e.b = binary.BigEndian.AppendUint16(e.b, uint16(v)) }
func (e *encoder) int32(v int32) { e.b = binary.BigEndian.AppendUint32(e.b, uint32(v)) }
