// Package contract is Weir's contract with applications beyond OpenAI's API:
// the X-Weir-* headers, the request's weir object and the answer's. What is not
// in this package does not exist.
package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/openai"
)

// Request headers.
const (
	HeaderMode        = "X-Weir-Mode"
	HeaderPrivacy     = "X-Weir-Privacy"
	HeaderSLO         = "X-Weir-Slo"
	HeaderDeadline    = "X-Weir-Deadline-Ms"
	HeaderMaxCost     = "X-Weir-Max-Cost-Usd"
	HeaderSession     = "X-Weir-Session"
	HeaderExplain     = "X-Weir-Explain"
	HeaderIdempotency = "Idempotency-Key"
)

// Headers that only Weir's own processes send inward: from a device with its
// certificate, or from a gateway to its workers.
const (
	HeaderOperation = "X-Weir-Operation"
	HeaderAttempt   = "X-Weir-Attempt"
	HeaderKeyID     = "X-Weir-Key-Id"
	// HeaderCacheSalt keeps one tenant's prefix cache apart from another's.
	HeaderCacheSalt = "X-Weir-Cache-Salt"
	// HeaderKV is KVPulled in the answer to a decode leg that has read its
	// hand-off.
	HeaderKV = "X-Weir-Kv"
	KVPulled = "pulled"
	// HeaderTTFT asks a worker for the first token within so many milliseconds.
	HeaderTTFT = "X-Weir-Slo-Ttft-Ms"
	// HeaderTPOT asks it for so many milliseconds per output token.
	HeaderTPOT = "X-Weir-Slo-Tpot-Ms"
)

// Response headers.
const (
	HeaderTier       = "X-Weir-Tier"
	HeaderModel      = "X-Weir-Model"
	HeaderReason     = "X-Weir-Reason"
	HeaderConfidence = "X-Weir-Confidence"
	HeaderAttempts   = "X-Weir-Attempts"
	HeaderCost       = "X-Weir-Cost-Usd"
	HeaderPolicy     = "X-Weir-Policy"
	HeaderInstance   = "X-Weir-Instance"
	HeaderRequestID  = "X-Request-Id"
	HeaderTiming     = "Server-Timing"
)

// Exposed lists the response headers that browsers may read (CORS).
var Exposed = []string{
	HeaderTier, HeaderModel, HeaderReason, HeaderConfidence, HeaderAttempts, HeaderCost, HeaderPolicy,
	HeaderInstance, HeaderRequestID, HeaderTiming, "Retry-After", "Retry-After-Ms",
	"X-RateLimit-Limit-Requests", "X-RateLimit-Remaining-Requests", "X-RateLimit-Reset-Requests",
	"X-RateLimit-Limit-Tokens", "X-RateLimit-Remaining-Tokens", "X-RateLimit-Reset-Tokens",
}

// Limits of the contract's values.
const (
	MaxDeadline   = 24 * time.Hour
	MaxNameBytes  = 128 // SLO class, session, idempotency key
	MaxDraftBytes = 1 << 20
)

// Options are what a request asks of Weir.
type Options struct {
	Mode           cascade.Mode
	Privacy        cascade.Privacy
	SLO            string        // SLO class, "" for the key's default
	Deadline       time.Duration // from arrival; 0 is none
	MaxCost        int64         // nano-dollars; 0 is no cap unless CostCapped
	CostCapped     bool
	Session        string
	IdempotencyKey string
	Explain        bool
	// Draft is the edge's answer that an escalation carries. Callers refuse it
	// from anyone without a device certificate.
	Draft *Draft
}

// Draft is the edge's answer to an escalated request.
type Draft struct {
	Text       string         `json:"text"`
	Confidence *float64       `json:"confidence,omitempty"` // calibrated, 0..1
	Reason     cascade.Reason `json:"reason"`
}

// member is one option with its header, the name inside the weir object and
// the JSON types that it may have there.
type member struct {
	name, header, kind string
	set                func(o *Options, s string) error
}

var members = []member{
	{"mode", HeaderMode, "string", func(o *Options, s string) (err error) { o.Mode, err = cascade.ParseMode(s); return }},
	{"privacy", HeaderPrivacy, "string", func(o *Options, s string) error {
		p, err := cascade.ParsePrivacy(s)
		o.Privacy = cascade.Stricter(o.Privacy, p)
		return err
	}},
	{"slo", HeaderSLO, "string", func(o *Options, s string) (err error) { o.SLO, err = name(s); return }},
	{"deadline_ms", HeaderDeadline, "number", setDeadline},
	{"max_cost_usd", HeaderMaxCost, "number", setMaxCost},
	{"session", HeaderSession, "string", func(o *Options, s string) (err error) { o.Session, err = name(s); return }},
	{"explain", HeaderExplain, "boolean", setExplain},
}

// ParseOptions reads the headers and the body's weir object. Where both say
// something the stricter holds for privacy, deadline and cost, for the others the
// body. What is said twice in one place, or in other capitals, is refused: whoever
// reads it before or after Weir might take it in another way. The error is an
// *openai.Error that names the header or member.
func ParseOptions(h http.Header, body openai.Body) (Options, error) {
	o := Options{Mode: cascade.ModeAuto, Privacy: cascade.PrivacyAny}
	for _, m := range members {
		value, err := Once(h, m.header)
		if err != nil {
			return o, err
		}
		if value == "" {
			continue
		}
		if err := m.set(&o, value); err != nil {
			return o, openai.BadRequest(m.header, openai.CodeInvalidValue, "%s: %s", m.header, err)
		}
	}
	key, err := Once(h, HeaderIdempotency)
	if err != nil {
		return o, err
	}
	if o.IdempotencyKey, err = name(key); err != nil {
		return o, openai.BadRequest(HeaderIdempotency, openai.CodeInvalidValue, "%s: %s", HeaderIdempotency, err)
	}
	for key := range body {
		if key != "weir" && strings.EqualFold(key, "weir") {
			return o, openai.BadRequest(key, openai.CodeUnknownMember, "%s is no member: write weir", key)
		}
	}
	weir := body["weir"]
	if weir == nil || bytes.Equal(bytes.TrimSpace(weir), []byte("null")) {
		return o, nil
	}
	return o, o.parseObject(weir)
}

// Once returns a header's value, "" where it is absent. One that is given twice is
// refused, whatever the values: an empty one may be a filter's.
func Once(h http.Header, name string) (string, error) {
	switch values := h.Values(name); len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	}
	return "", openai.BadRequest(name, openai.CodeInvalidValue, "%s is given more than once", name)
}

func (o *Options) parseObject(weir json.RawMessage) error {
	var obj map[string]json.RawMessage
	if json.Unmarshal(weir, &obj) != nil {
		return openai.BadRequest("weir", openai.CodeInvalidValue, "weir must be an object")
	}
	for _, key := range sortedKeys(obj) {
		at := "weir." + key
		if key == "draft" {
			d, err := parseDraft(obj[key])
			if err != nil {
				return err
			}
			o.Draft = d
			continue
		}
		i := slices.IndexFunc(members, func(m member) bool { return m.name == key })
		if i < 0 {
			return openai.BadRequest(at, openai.CodeUnknownMember, "%s is not a member of weir", at)
		}
		s, ok := scalarText(obj[key], members[i].kind)
		if !ok {
			return openai.BadRequest(at, openai.CodeInvalidValue, "%s must be a %s", at, members[i].kind)
		}
		if s == "" {
			continue
		}
		if err := members[i].set(o, s); err != nil {
			return openai.BadRequest(at, openai.CodeInvalidValue, "%s: %s", at, err)
		}
	}
	return nil
}

func parseDraft(raw json.RawMessage) (*Draft, error) {
	var d *Draft
	if err := openai.Misspelt("weir.draft", raw, d); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return nil, openai.BadRequest("weir.draft", openai.CodeInvalidValue, "weir.draft must be an object of text, confidence and reason")
	}
	switch {
	case d == nil:
		return nil, nil
	case len(d.Text) > MaxDraftBytes:
		return nil, openai.BadRequest("weir.draft.text", openai.CodeInvalidValue, "weir.draft.text is longer than %d bytes", MaxDraftBytes)
	case !d.Reason.Valid():
		return nil, openai.BadRequest("weir.draft.reason", openai.CodeInvalidValue, "weir.draft.reason is not a reason code")
	case d.Confidence != nil && (*d.Confidence < 0 || *d.Confidence > 1):
		return nil, openai.BadRequest("weir.draft.confidence", openai.CodeInvalidValue, "weir.draft.confidence must be from 0 to 1")
	}
	return d, nil
}

func setDeadline(o *Options, s string) error {
	ms, err := strconv.ParseInt(s, 10, 64)
	if err != nil || ms <= 0 || ms > MaxDeadline.Milliseconds() {
		return fmt.Errorf("must be whole milliseconds from 1 to %d", MaxDeadline.Milliseconds())
	}
	if d := time.Duration(ms) * time.Millisecond; o.Deadline == 0 || d < o.Deadline {
		o.Deadline = d
	}
	return nil
}

func setMaxCost(o *Options, s string) error {
	usd, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(usd) || usd < 0 || usd > 1e6 {
		return fmt.Errorf("must be dollars from 0 to 1000000")
	}
	if nano := int64(math.Floor(usd * 1e9)); !o.CostCapped || nano < o.MaxCost {
		o.MaxCost, o.CostCapped = nano, true
	}
	return nil
}

func setExplain(o *Options, s string) error {
	switch s {
	case "1", "true":
		o.Explain = true
	case "0", "false":
		o.Explain = false
	default:
		return fmt.Errorf("must be 1 or 0")
	}
	return nil
}

// name accepts printable ASCII up to MaxNameBytes.
func name(s string) (string, error) {
	if len(s) > MaxNameBytes {
		return "", fmt.Errorf("is longer than %d bytes", MaxNameBytes)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
		return "", fmt.Errorf("must be printable ASCII")
	}
	return s, nil
}

// scalarText returns a JSON string, number or boolean as text; null is "".
func scalarText(raw json.RawMessage, kind string) (string, bool) {
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return "", false
	}
	switch v := v.(type) {
	case nil:
		return "", true
	case string:
		return v, kind == "string"
	case json.Number:
		return v.String(), kind == "number" || kind == "boolean" // 1 and 0, as in the header
	case bool:
		return strconv.FormatBool(v), kind == "boolean"
	}
	return "", false
}

func sortedKeys(m map[string]json.RawMessage) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
