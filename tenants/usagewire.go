package tenants

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Bounds of one POST /edge/v1/usage.
const (
	MaxUsageRows  = 1000
	MaxUsageBytes = 1 << 20

	maxProblemBytes = 200
)

// UsageRow is a ledger row as a device sends it. It has no tenant and no
// device: both come from the certificate. Members mean what they mean in
// UsageRecord. Cost and price are not here either, because the cloud prices
// every row itself.
type UsageRow struct {
	AttemptID       string      `json:"attempt_id"`
	OperationID     string      `json:"operation_id"`
	KeyID           string      `json:"key_id,omitempty"`
	Tier            Tier        `json:"tier"`
	Model           string      `json:"model"`
	Class           string      `json:"class,omitempty"`
	Outcome         Outcome     `json:"outcome"`
	UsageSource     UsageSource `json:"usage_source"`
	InputTokens     int64       `json:"input_tokens"`
	CachedTokens    int64       `json:"cached_tokens"`
	OutputTokens    int64       `json:"output_tokens"`
	ReasoningTokens int64       `json:"reasoning_tokens"`
	StartedAt       time.Time   `json:"started_at"`
	TTFTMicros      int64       `json:"ttft_us,omitempty"`
	TotalMicros     int64       `json:"total_us"`
	ErrorCode       string      `json:"error_code,omitempty"`
	Reason          string      `json:"reason,omitempty"`
}

// UsageBatch is the body of POST /edge/v1/usage.
type UsageBatch struct {
	Rows []UsageRow `json:"rows"`
}

// UsageReply answers a batch. A rejected row will be rejected again, so the
// device drops it; accepted and duplicate rows are done with too.
type UsageReply struct {
	Accepted   int           `json:"accepted"`
	Duplicates int           `json:"duplicates"`
	Rejected   []RejectedRow `json:"rejected,omitempty"`
}

// RejectedRow says why a row of a batch was refused.
type RejectedRow struct {
	Index     int    `json:"index"` // in the batch's rows
	AttemptID string `json:"attempt_id,omitempty"`
	Field     string `json:"field,omitempty"`
	Problem   string `json:"problem"`
}

// Row returns what a device may say of the record.
func (r *UsageRecord) Row() UsageRow {
	return UsageRow{
		AttemptID: r.AttemptID, OperationID: r.OperationID, KeyID: r.KeyID,
		Tier: r.Tier, Model: r.Model, Class: r.Class,
		Outcome: r.Outcome, UsageSource: r.UsageSource,
		InputTokens: r.InputTokens, CachedTokens: r.CachedTokens,
		OutputTokens: r.OutputTokens, ReasoningTokens: r.ReasoningTokens,
		StartedAt: r.StartedAt, TTFTMicros: r.TTFTMicros, TotalMicros: r.TotalMicros,
		ErrorCode: r.ErrorCode, Reason: r.Reason,
	}
}

// Record makes a ledger row of what a device sent, for the tenant and device
// of its certificate. It is not validated and not yet priced.
func (w UsageRow) Record(tenantID, deviceID string) UsageRecord {
	return UsageRecord{
		AttemptID: w.AttemptID, OperationID: w.OperationID,
		TenantID: tenantID, KeyID: w.KeyID, DeviceID: deviceID,
		Tier: w.Tier, Model: w.Model, Class: w.Class,
		Outcome: w.Outcome, UsageSource: w.UsageSource,
		InputTokens: w.InputTokens, CachedTokens: w.CachedTokens,
		OutputTokens: w.OutputTokens, ReasoningTokens: w.ReasoningTokens,
		StartedAt: w.StartedAt.UTC(), TTFTMicros: w.TTFTMicros, TotalMicros: w.TotalMicros,
		ErrorCode: w.ErrorCode, Reason: w.Reason,
	}
}

// DecodeUsage reads the body of POST /edge/v1/usage. Rows that are malformed,
// hold unknown members or fail Validate are reported one by one, so that a bad
// row cannot hold up a device's other rows. A device speaks only for its own
// tier. The error says that the body as a whole cannot be used.
func DecodeUsage(body []byte, tenantID, deviceID string, now time.Time) ([]UsageRecord, []RejectedRow, error) {
	if len(body) > MaxUsageBytes {
		return nil, nil, fmt.Errorf("usage batch of %d bytes is over the limit of %d", len(body), MaxUsageBytes)
	}
	var raw struct {
		Rows []json.RawMessage `json:"rows"`
	}
	if err := decodeStrict(body, &raw); err != nil {
		return nil, nil, fmt.Errorf("decode usage batch: %w", err)
	}
	if len(raw.Rows) > MaxUsageRows {
		return nil, nil, fmt.Errorf("usage batch of %d rows is over the limit of %d", len(raw.Rows), MaxUsageRows)
	}
	rows := make([]UsageRecord, 0, len(raw.Rows))
	var rejected []RejectedRow
	for i, b := range raw.Rows {
		rec, err := decodeRow(b, tenantID, deviceID, now)
		if err != nil {
			rejected = append(rejected, rejectedRow(i, rec.AttemptID, err))
			continue
		}
		rows = append(rows, rec)
	}
	return rows, rejected, nil
}

func decodeRow(b []byte, tenantID, deviceID string, now time.Time) (UsageRecord, error) {
	var w UsageRow
	if err := decodeStrict(b, &w); err != nil {
		return UsageRecord{}, err
	}
	rec := w.Record(tenantID, deviceID)
	if err := rec.Validate(now); err != nil {
		return rec, err
	}
	if rec.Tier != Edge {
		return rec, fieldErr("tier", "a device reports its own tier, edge")
	}
	if isAnswerID(rec.AttemptID) { // it would stand where the cloud's row for its answer is to stand
		return rec, fieldErr("attempt_id", "version 8 is the cloud's own: want a UUIDv7")
	}
	return rec, nil
}

func rejectedRow(i int, attemptID string, err error) RejectedRow {
	r := RejectedRow{Index: i, Problem: err.Error()}
	if len(r.Problem) > maxProblemBytes { // it may quote the row
		r.Problem = strings.ToValidUTF8(r.Problem[:maxProblemBytes], "") + "..."
	}
	if isUUID(attemptID) {
		r.AttemptID = attemptID
	}
	if fe := (*FieldError)(nil); errors.As(err, &fe) {
		r.Field, r.Problem = fe.Field, fe.Problem
	}
	return r
}
