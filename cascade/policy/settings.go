// Package policy turns what an operator configures for a tenant or an SLO class
// into decisions: strict settings, refused where they contradict themselves or
// could leak a local-only request, and a controller that holds a rate, a budget
// or a risk by moving the threshold. It is pure.
package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/internal/jsonscan"
)

// ErrSettings says that settings are refused; the message names the key and
// what to do.
var ErrSettings = errors.New("cascade settings")

// Settings are the cascade policy of a tenant and SLO class. At most one of
// Threshold, Rate, Value, Budget and Risk sets the threshold; with none the
// calibration's own does.
type Settings struct {
	Name    string          `json:"name"`
	Version uint64          `json:"version"`
	Mode    cascade.Mode    `json:"mode,omitempty"`    // for requests that name none
	Privacy cascade.Privacy `json:"privacy,omitempty"` // the least for all requests

	Threshold *float64 `json:"threshold,omitempty"` // probability below which to escalate
	Rate      *float64 `json:"rate,omitempty"`      // target share of escalations
	Value     *Value   `json:"value,omitempty"`     // what a right answer is worth
	Budget    *Budget  `json:"budget,omitempty"`    // money to spread over requests
	Risk      *Risk    `json:"risk,omitempty"`      // wrong answers kept that the cloud had right

	// Shadow is the share of kept answers that the cloud labels; nil is the
	// default of package learn, 0 is none.
	Shadow  *float64       `json:"shadow,omitempty"`
	Hedge   bool           `json:"hedge,omitempty"`
	Window  *Window        `json:"window,omitempty"`
	Handoff stream.Handoff `json:"handoff,omitempty"`
	// Sticky keeps a session in the cloud once it was let over; SkipEdge does not
	// ask the edge where its answer would hardly be kept.
	Sticky   bool    `json:"sticky,omitempty"`
	SkipEdge bool    `json:"skip_edge,omitempty"`
	Checks   *Checks `json:"validate,omitempty"`
	Verify   *Verify `json:"verify,omitempty"`
}

// Verify asks the model that answered whether its answer is right, where what it
// says can turn the verdict.
type Verify struct {
	// Samples is what its yes is counted of, 1 to 10: those of the table that reads
	// it (package verifier).
	Samples int `json:"samples"`
}

// Checks are validators of every answer of the edge, beside the form that a
// request asks for itself.
type Checks struct {
	// Pattern is a regular expression (RE2) that the text must hold.
	Pattern string `json:"pattern,omitempty"`
	// Refusals rejects answers that decline to answer.
	Refusals bool `json:"refusals,omitempty"`

	compiled *regexp.Regexp
}

// Regexp is the compiled Pattern of settings that are valid, nil for none.
func (c *Checks) Regexp() *regexp.Regexp { return c.compiled }

// maxPattern bounds a pattern, bytes.
const maxPattern = 1024

func (c *Checks) compile() (err error) {
	if c == nil || c.Pattern == "" {
		return nil
	}
	if len(c.Pattern) > maxPattern {
		return fmt.Errorf("pattern is longer than %d bytes", maxPattern)
	}
	c.compiled, err = regexp.Compile(c.Pattern)
	return err
}

// Value is the price mode: escalate when the expected gain is worth its cost.
type Value struct {
	RightNano     int64 `json:"right_nano"`      // value of a right answer, nano-dollars
	PerSecondNano int64 `json:"per_second_nano"` // price of a second of latency
}

// Budget is a sum per day and what a right answer is worth, nano-dollars.
type Budget struct {
	PerDayNano int64 `json:"per_day_nano"`
	RightNano  int64 `json:"right_nano"`
}

// Risk is the level alpha that the share of kept wrong answers may have, with
// probability 1-delta, while traffic stays exchangeable; MaxRate is the most
// that may be escalated for it.
type Risk struct {
	Alpha   float64 `json:"alpha"`
	Delta   float64 `json:"delta"`
	MaxRate float64 `json:"max_rate"`
}

// RiskWindow is the most labels on which a risk is bounded.
const RiskWindow = 2000

// Window is the hold-back window: it ends after so many tokens or milliseconds,
// whichever is over first; 0 is no bound, and two zeros hold nothing back.
type Window struct {
	Tokens int `json:"tokens"`
	WaitMS int `json:"wait_ms"`
}

// Wait is WaitMS.
func (w *Window) Wait() time.Duration { return time.Duration(w.WaitMS) * time.Millisecond }

// Parse reads settings from JSON. Unknown keys are refused, known ones in other
// capitals or given twice too, and so is what Validate refuses.
func Parse(data []byte) (Settings, error) {
	var s Settings
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return Settings{}, fmt.Errorf("%w: %s", ErrSettings, readable(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Settings{}, fmt.Errorf("%w: data after the JSON object", ErrSettings)
	}
	if key, twice := jsonscan.Repeated(data); twice {
		return Settings{}, fmt.Errorf("%w: %s is given more than once", ErrSettings, key)
	}
	if key := jsonscan.Misspelt(data, reflect.TypeFor[Settings]()); key != "" {
		return Settings{}, fmt.Errorf("%w: unknown key %q: capitals matter", ErrSettings, key)
	}
	if err := s.Validate(); err != nil {
		return Settings{}, err
	}
	return s, nil
}

// readable says in the words of JSON what package json says in those of Go.
func readable(err error) string {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return strings.TrimPrefix(err.Error(), "json: ")
	}
	want := "an object"
	switch kind := wrong.Type.Kind(); {
	case kind == reflect.String:
		want = "a string"
	case kind == reflect.Bool:
		want = "true or false"
	case kind == reflect.Float64:
		want = "a number"
	case kind >= reflect.Int && kind <= reflect.Uint64:
		want = "a whole number"
	}
	field := wrong.Field
	if field == "" {
		field = "settings"
	}
	return fmt.Sprintf("%s: want %s, not %s", field, want, wrong.Value)
}

// Validate refuses values out of range, two owners of one threshold, and
// anything by which a local-only request could reach the cloud.
func (s *Settings) Validate() error {
	for _, check := range []func() string{s.badNames, s.badOwner, s.badRanges, s.leaks} {
		if why := check(); why != "" {
			return fmt.Errorf("%w: %s", ErrSettings, why)
		}
	}
	return nil
}

func (s *Settings) badNames() string {
	if _, err := cascade.ParseMode(string(s.Mode)); err != nil {
		return "mode: " + err.Error()
	}
	if _, err := cascade.ParsePrivacy(string(s.Privacy)); err != nil {
		return "privacy: " + err.Error()
	}
	if err := s.Checks.compile(); err != nil {
		return "validate: " + err.Error()
	}
	switch s.Handoff {
	case "", stream.HandoffFinish, stream.HandoffContinue, stream.HandoffAppend:
		return ""
	}
	return fmt.Sprintf("handoff: unknown value %q: use finish, continue or append", s.Handoff)
}

func (s *Settings) badOwner() string {
	owners := ""
	for _, o := range []struct {
		set  bool
		name string
	}{{s.Threshold != nil, "threshold"}, {s.Rate != nil, "rate"}, {s.Value != nil, "value"}, {s.Budget != nil, "budget"}, {s.Risk != nil, "risk"}} {
		if o.set && owners != "" {
			return fmt.Sprintf("%s and %s both set the threshold: keep one", owners, o.name)
		}
		if o.set {
			owners = o.name
		}
	}
	return ""
}

func (s *Settings) badRanges() string {
	share := func(name string, v *float64, low, high float64) string {
		if v != nil && !(*v >= low && *v <= high) {
			return fmt.Sprintf("%s is %v, want %v to %v", name, *v, low, high)
		}
		return ""
	}
	for _, why := range []string{share("threshold", s.Threshold, 0, 1), share("rate", s.Rate, 0, 1), share("shadow", s.Shadow, 0, .5)} {
		if why != "" {
			return why
		}
	}
	switch {
	case s.Value != nil && (s.Value.RightNano <= 0 || s.Value.PerSecondNano < 0):
		return "value: right_nano must be positive, per_second_nano not negative"
	case s.Budget != nil && (s.Budget.PerDayNano <= 0 || s.Budget.RightNano <= 0):
		return "budget: per_day_nano and right_nano must be positive"
	case s.Risk != nil && !(s.Risk.Alpha > 0 && s.Risk.Alpha < 1 && s.Risk.Delta > 0 && s.Risk.Delta < 1 && s.Risk.MaxRate > 0 && s.Risk.MaxRate <= 1):
		return "risk: alpha and delta must lie between 0 and 1, max_rate above 0 and at most 1"
	case s.Risk != nil && s.Risk.Alpha < control.MinAlpha(RiskWindow, s.Risk.Delta):
		return fmt.Sprintf("risk: alpha %g is infeasible: %d labels without a loss bound the risk only by %.4f at delta %g, so raise one of them",
			s.Risk.Alpha, RiskWindow, control.MinAlpha(RiskWindow, s.Risk.Delta), s.Risk.Delta)
	case s.Window != nil && (s.Window.Tokens < 0 || s.Window.Tokens > 4096 || s.Window.WaitMS < 0 || s.Window.WaitMS > 10_000):
		return "window: tokens 0 to 4096, wait_ms 0 to 10000"
	case s.Verify != nil && (s.Verify.Samples < 1 || s.Verify.Samples > verifier.MostVotes):
		return fmt.Sprintf("verify: samples is %d, want 1 to %d", s.Verify.Samples, verifier.MostVotes)
	case s.Verify != nil && s.Risk != nil:
		return "verify and risk: a risk is bounded for the signal alone, so keep one"
	}
	return ""
}

func (s *Settings) leaks() string {
	if !s.Privacy.Local() {
		return ""
	}
	switch {
	case s.Mode == cascade.ModeCloudOnly || s.Mode == cascade.ModePreferCloud:
		return fmt.Sprintf("mode %s would send local-only requests to the cloud", s.Mode)
	case s.Shadow != nil && *s.Shadow > 0:
		return "shadow above 0 would send local-only requests to the cloud: set it to 0"
	case s.Hedge:
		return "hedge would send local-only requests to the cloud"
	case s.SkipEdge:
		return "skip_edge has no effect on local-only requests: leave it out"
	case s.Sticky:
		return "sticky has no effect on local-only requests: leave it out"
	case s.Handoff == stream.HandoffContinue || s.Handoff == stream.HandoffAppend:
		return fmt.Sprintf("handoff %s has no effect on local-only requests: leave it out", s.Handoff)
	}
	return ""
}

// CheckRisk refuses, when the settings are stored, a risk that the cell's
// traffic cannot keep: base is the share of answers that are wrong at the edge
// and right at the cloud. It returns control.ErrInfeasible with the numbers.
func (s *Settings) CheckRisk(base float64) error {
	if s.Risk == nil || math.IsNaN(base) {
		return nil
	}
	if err := control.CheckFeasible(base, s.Risk.Alpha, s.Risk.MaxRate); err != nil {
		return fmt.Errorf("%w: risk: %w", ErrSettings, err)
	}
	return nil
}
