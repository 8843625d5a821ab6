package contract

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/weirhq/weir/cascade"
)

// Result is the weir object of an answer: in the JSON body, and in the last
// chunk of a stream, because a stream's headers leave before the decision.
type Result struct {
	Tier         cascade.Tier   `json:"tier,omitempty"`
	Model        string         `json:"model,omitempty"` // the model that really answered
	Reason       cascade.Reason `json:"reason,omitempty"`
	Confidence   *float64       `json:"confidence"` // calibrated probability that the edge's answer is right; null when unknown
	HandoffToken int            `json:"handoff_token,omitempty"`
	EdgeTokens   int            `json:"edge_tokens"`
	CloudTokens  int            `json:"cloud_tokens"`
	CostUSD      USD            `json:"cost_usd"`
	QueueMs      float64        `json:"queue_ms"`
	TTFTMs       float64        `json:"ttft_ms"`
	Attempts     int            `json:"attempts"`
	// Explain is the decision's explanation where the request asked for it
	// (X-Weir-Explain), as GET /v1/weir/requests/{id} gives it.
	Explain any `json:"explain,omitempty"`

	// For headers only.
	Policy   string `json:"-"`
	Instance string `json:"-"` // an opaque name
}

// USD is an amount in nano-dollars that is written as dollars.
type USD int64

// String returns dollars with as many digits as the amount needs.
func (u USD) String() string {
	sign, n := "", int64(u)
	if n < 0 {
		sign, n = "-", -n
	}
	s := fmt.Sprintf("%s%d.%09d", sign, n/1e9, n%1e9)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// MarshalJSON writes a number of dollars.
func (u USD) MarshalJSON() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalJSON reads a number of dollars, rounded to nano-dollars.
func (u *USD) UnmarshalJSON(data []byte) error {
	f, err := strconv.ParseFloat(string(data), 64)
	if err != nil || f < -9e9 || f > 9e9 {
		return fmt.Errorf("cost_usd: %q is not an amount in dollars", data)
	}
	*u = USD(f*1e9 + 0.5)
	return nil
}

// WriteHeaders sets what is known of r so far; empty members set nothing.
func (r *Result) WriteHeaders(h http.Header) {
	set := func(name, value string) {
		if value != "" {
			h.Set(name, value)
		}
	}
	set(HeaderTier, string(r.Tier))
	set(HeaderModel, r.Model)
	set(HeaderReason, string(r.Reason))
	if r.Confidence != nil {
		set(HeaderConfidence, strconv.FormatFloat(*r.Confidence, 'f', 4, 64))
	}
	if r.Attempts > 0 {
		set(HeaderAttempts, strconv.Itoa(r.Attempts))
	}
	if r.Tier != "" {
		set(HeaderCost, r.CostUSD.String())
	}
	set(HeaderPolicy, r.Policy)
	set(HeaderInstance, r.Instance)
}

// ExposeHeaders lets browsers read the contract's headers.
func ExposeHeaders(h http.Header) {
	h.Set("Access-Control-Expose-Headers", strings.Join(Exposed, ", "))
}

// Timing sets Server-Timing from alternating names and durations.
type Timing struct{ b strings.Builder }

// Add appends one metric.
func (t *Timing) Add(name string, d time.Duration) {
	if t.b.Len() > 0 {
		t.b.WriteString(", ")
	}
	fmt.Fprintf(&t.b, "%s;dur=%.3f", name, float64(d)/1e6)
}

// Write sets the header when anything was added.
func (t *Timing) Write(h http.Header) {
	if t.b.Len() > 0 {
		h.Set(HeaderTiming, t.b.String())
	}
}

// NewID mints an operation or attempt id (UUIDv7).
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// ParseID accepts exactly the canonical text of a UUIDv7.
func ParseID(s string) (string, error) {
	u, err := uuid.Parse(s)
	if err != nil || u.Version() != 7 || len(s) != 36 {
		return "", fmt.Errorf("%q is not a UUIDv7", clip(s))
	}
	return u.String(), nil
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
