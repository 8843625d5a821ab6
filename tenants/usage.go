package tenants

import (
	"fmt"
	"time"
)

// Bounds of a usage row. Counts above them are mistakes or attacks.
const (
	MaxRowTokens   = 1 << 30             // per kind of token
	MaxRowDuration = 7 * 24 * time.Hour  // from start to end of an attempt
	MaxRowAge      = 90 * 24 * time.Hour // a device may have been offline that long
	MaxRowSkew     = 10 * time.Minute    // how far a clock may run ahead
	MaxAttempt     = 1000
	maxNameBytes   = 128
	maxCodeBytes   = 64
)

// UsageRecord is one row of the usage ledger: one attempt, written exactly
// once. Its JSON is what GET shows; see UsageRow for what devices may send.
type UsageRecord struct {
	AttemptID   string      `json:"attempt_id"`   // UUID; the ledger's key
	OperationID string      `json:"operation_id"` // UUIDv7; shared by all attempts of a request
	TenantID    string      `json:"tenant_id"`
	KeyID       string      `json:"key_id,omitempty"`    // empty: the device's own use
	DeviceID    string      `json:"device_id,omitempty"` // empty: the request came straight to the cloud
	Attempt     int64       `json:"attempt,omitempty"`   // 1 is the row by which the operation is counted on this tier; 0: unknown, counts too
	Tier        Tier        `json:"tier"`
	Model       string      `json:"model"` // the one that really answered
	Class       string      `json:"class,omitempty"`
	Outcome     Outcome     `json:"outcome"`
	UsageSource UsageSource `json:"usage_source"`

	InputTokens     int64 `json:"input_tokens"`     // prompt, cached included
	CachedTokens    int64 `json:"cached_tokens"`    // of InputTokens, those found in a cache
	OutputTokens    int64 `json:"output_tokens"`    // generated, reasoning included
	ReasoningTokens int64 `json:"reasoning_tokens"` // of OutputTokens

	PriceVersion int64 `json:"price_version"` // Price.Version; 0: no price
	CostNanoUSD  int64 `json:"cost_nanousd"`

	StartedAt   time.Time `json:"started_at"`
	TTFTMicros  int64     `json:"ttft_us,omitempty"` // 0: no token came
	TotalMicros int64     `json:"total_us"`

	ErrorCode string `json:"error_code,omitempty"` // of a-z0-9_
	Reason    string `json:"reason,omitempty"`     // the cascade's reason code
	Node      string `json:"node,omitempty"`       // gateway that settled it
	NodeEpoch string `json:"node_epoch,omitempty"` // its process
}

// FieldError names the member of a row or request that is wrong.
type FieldError struct{ Field, Problem string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

func fieldErr(field, format string, a ...any) error {
	return &FieldError{field, fmt.Sprintf(format, a...)}
}

// Validate checks every member of the row against the time now. Its error is
// a *FieldError. Tenant and device are the caller's to set and are checked
// only for their size.
func (r *UsageRecord) Validate(now time.Time) error {
	if err := r.validateNames(); err != nil {
		return err
	}
	if err := r.validateTokens(); err != nil {
		return err
	}
	return r.validateTimes(now)
}

func (r *UsageRecord) validateNames() error {
	switch {
	case !isUUID(r.AttemptID):
		return fieldErr("attempt_id", "want a UUID in lower case")
	case !isUUID(r.OperationID) || r.OperationID[14] != '7':
		return fieldErr("operation_id", "want a UUIDv7 in lower case")
	case r.KeyID != "" && !within(r.KeyID, minID, maxID, isLower):
		return fieldErr("key_id", "want %d to %d of a-z0-9", minID, maxID)
	case r.Tier != Edge && r.Tier != Cloud:
		return fieldErr("tier", "want edge or cloud")
	case !r.Outcome.Valid():
		return fieldErr("outcome", "unknown")
	case !r.UsageSource.Valid():
		return fieldErr("usage_source", "want upstream, counted or estimated")
	case r.Outcome == OutcomeGatewayLost && r.UsageSource != UsageEstimated:
		return fieldErr("usage_source", "want estimated for outcome gateway_lost")
	case r.Model == "" && r.Outcome.Ran():
		return fieldErr("model", "missing")
	}
	names := [...]struct{ field, value string }{
		{"model", r.Model}, {"class", r.Class}, {"tenant_id", r.TenantID},
		{"device_id", r.DeviceID}, {"node", r.Node}, {"node_epoch", r.NodeEpoch},
	}
	for _, n := range names {
		if !within(n.value, 0, maxNameBytes, isGraphic) {
			return fieldErr(n.field, "want at most %d printable ASCII characters without spaces", maxNameBytes)
		}
	}
	if !within(r.ErrorCode, 0, maxCodeBytes, isCode) {
		return fieldErr("error_code", "want at most %d of a-z0-9_", maxCodeBytes)
	}
	if !within(r.Reason, 0, maxCodeBytes, isCode) {
		return fieldErr("reason", "want at most %d of a-z0-9_", maxCodeBytes)
	}
	return nil
}

func (r *UsageRecord) validateTokens() error {
	counts := [...]struct {
		field string
		value int64
	}{
		{"input_tokens", r.InputTokens}, {"cached_tokens", r.CachedTokens},
		{"output_tokens", r.OutputTokens}, {"reasoning_tokens", r.ReasoningTokens},
	}
	for _, c := range counts {
		if c.value < 0 || c.value > MaxRowTokens {
			return fieldErr(c.field, "want 0 to %d", MaxRowTokens)
		}
	}
	switch {
	case r.CachedTokens > r.InputTokens:
		return fieldErr("cached_tokens", "more than input_tokens")
	case r.ReasoningTokens > r.OutputTokens:
		return fieldErr("reasoning_tokens", "more than output_tokens")
	case !r.Outcome.Ran() && r.OutputTokens > 0:
		return fieldErr("output_tokens", "want 0 for outcome %s", r.Outcome)
	case r.Attempt < 0 || r.Attempt > MaxAttempt:
		return fieldErr("attempt", "want 0 to %d", MaxAttempt)
	case r.PriceVersion < 0:
		return fieldErr("price_version", "negative")
	case r.CostNanoUSD < 0:
		return fieldErr("cost_nanousd", "negative")
	}
	return nil
}

func (r *UsageRecord) validateTimes(now time.Time) error {
	switch {
	case r.StartedAt.IsZero():
		return fieldErr("started_at", "missing")
	case r.StartedAt.After(now.Add(MaxRowSkew)):
		return fieldErr("started_at", "in the future: set the clock")
	case r.StartedAt.Before(now.Add(-MaxRowAge)):
		return fieldErr("started_at", "more than %d days ago", MaxRowAge/(24*time.Hour))
	case r.TotalMicros < 0 || r.TotalMicros > MaxRowDuration.Microseconds():
		return fieldErr("total_us", "want 0 to %d", MaxRowDuration.Microseconds())
	case r.TTFTMicros < 0 || r.TTFTMicros > r.TotalMicros:
		return fieldErr("ttft_us", "want 0 to total_us")
	}
	return nil
}

// isUUID accepts only the canonical lower-case form, because ids are compared
// as text.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
				return false
			}
		}
	}
	return true
}

func isGraphic(c byte) bool { return '!' <= c && c <= '~' }
func isCode(c byte) bool    { return isLower(c) || c == '_' }
