package local_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/learning"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// pupil is a Learner whose view the test sets, that always draws, and that makes
// each shadow call at once.
type pupil struct {
	mu        sync.Mutex
	view      learn.View
	drawn     []string
	shares    []*float64
	shadowed  []learning.Pair
	answers   []learning.Answer
	bounds    []int64
	failed    []error
	escalated []learning.Pair
	heard     []string
}

func (p *pupil) View(string) *learn.View {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.view
	return &v
}

func (p *pupil) Draw(operation, _ string, share *float64, _ int64) (float64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drawn, p.shares = append(p.drawn, operation), append(p.shares, share)
	return .25, true
}

func (p *pupil) Shadow(pair learning.Pair, bound int64, ask learning.Ask) {
	a, err := ask(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shadowed, p.answers, p.failed = append(p.shadowed, pair), append(p.answers, a), append(p.failed, err)
	p.bounds = append(p.bounds, bound)
}

func (p *pupil) Escalated(pair learning.Pair, a learning.Answer, _ int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.escalated, p.heard = append(p.escalated, pair), append(p.heard, a.Text)
}

func (p *pupil) set(f func(*learn.View)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.view)
}

// startPupil starts a node that learns, with its decision log.
func startPupil(t *testing.T) (*node, *pupil, *records) {
	p, log := &pupil{}, &records{}
	p.view.Calibration, p.view.Calibrated = *calibration(), true
	return startNode(t, func(o *local.Options) { o.Learner, o.Decisions = p, log }), p, log
}

func settled(t *testing.T, log *records, n int) {
	t.Helper()
	eventually(t, "the request's decision", func() bool { log.mu.Lock(); defer log.mu.Unlock(); return len(log.got) == n })
}

// A kept answer may be asked of the cloud once it has gone out: the same request
// under the same operation and key, never streamed, and told from an escalation
// by its reason. The client sees nothing of it.
func TestShadowCall(t *testing.T) {
	n, p, log := startPupil(t)
	share := .5
	n.setPolicy(2, tenants.Policy{Spec: json.RawMessage(`{"shadow":0.5}`)})
	for i, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
		n.worker.Set(confident)
		a := n.chat(stream + `,"max_tokens":50`)
		eventually(t, "the shadow call", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.shadowed) == i+1 })
		r := log.last()
		if a.weir.Tier != cascade.TierEdge || a.weir.Attempts != 1 || a.weir.CostUSD != 0 || !r.Shadow || r.Propensity != .25 {
			t.Errorf("answer %+v, record %+v", a.weir, r)
		}
		if e := n.get("/v1/weir/requests/"+a.header.Get("X-Request-Id"), 200); !strings.Contains(e, `"propensity":0.25,"shadow":true`) {
			t.Errorf("explained by %s", e)
		}
		seen := n.cloud.Seen()
		if len(seen) != i+1 {
			t.Fatalf("%d calls", len(seen))
		}
		var body struct {
			Model     string
			Stream    bool
			MaxTokens int             `json:"max_tokens"`
			Options   json.RawMessage `json:"stream_options"`
			Weir      struct{ Draft contract.Draft }
		}
		if err := json.Unmarshal(seen[i].Body, &body); err != nil {
			t.Fatal(err)
		}
		if body.Model != "hub-cloud" || body.Stream || body.Options != nil || body.MaxTokens != 50 || body.Weir.Draft.Reason != cascade.ReasonConfident ||
			seen[i].Header.Get(contract.HeaderOperation) != a.header.Get("X-Request-Id") || seen[i].Header.Get(contract.HeaderKeyID) != n.cloud.Key.ID {
			t.Errorf("call %s %v", seen[i].Body, seen[i].Header)
		}
		if id, err := uuid.Parse(seen[i].Header.Get(contract.HeaderAttempt)); err != nil || id.Version() != 7 {
			t.Errorf("attempt %v, %v", id, err)
		}
		if pair := p.shadowed[i]; pair.Answer != a.text || pair.Propensity != .25 || len(pair.Features) != 1 || pair.Model != workertest.Fingerprint ||
			p.answers[i].Text != "from the cloud" || p.answers[i].CostNano != 1000 || p.failed[i] != nil || *p.shares[i] != share {
			t.Errorf("pair %+v, answer %+v, %v", pair, p.answers[i], p.failed[i])
		}
	}
}

// An escalated answer teaches with certainty; the cloud's text is what the
// client got, streamed or not.
func TestEscalatedAnswersTeach(t *testing.T) {
	n, p, log := startPupil(t)
	n.worker.Set(unsure)
	for i, stream := range []string{"", `,"stream":true`} {
		a := n.chat(stream)
		settled(t, log, i+1)
		eventually(t, "a lesson", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.escalated) == i+1 })
		if r := log.last(); r.Propensity != 1 || r.Shadow {
			t.Errorf("record %+v", r)
		}
		if a.weir.Tier != cascade.TierCloud || p.heard[i] != a.text || p.escalated[i].Answer == a.text || p.escalated[i].Operation != a.header.Get("X-Request-Id") {
			t.Errorf("heard %q of %q, pair %+v", p.heard[i], a.text, p.escalated[i])
		}
	}
	if len(p.drawn) != 0 {
		t.Error("a draw for an escalated answer")
	}
}

// A stream that was let over at its beginning teaches where the edge had finished
// unseen before the cloud's first event, and else not.
func TestStreamsLetOverTeach(t *testing.T) {
	p, log := &pupil{}, &records{}
	ended, gate := make(chan struct{}, 8), make(chan struct{}) // the generation has; the worker may go on
	n := startStreaming(t, func(o *local.Options) {
		p.view.Calibration, p.view.Calibrated = *o.Calibration, true
		o.Learner, o.Decisions = p, log
		o.Generator = &middle{Generator: o.Generator, after: func() { ended <- struct{}{} }}
	})
	n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) {
		<-ended
		cloudtest.Say("from the cloud")(w, r)
	})
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -1})
	a := n.chat(`,"stream":true`)
	settled(t, log, 1)
	eventually(t, "a lesson", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.escalated) == 1 })
	if p.escalated[0].Answer != eight || a.text != "from the cloud" || log.last().Propensity != 1 {
		t.Errorf("%q teaches %+v by %+v", a.text, p.escalated[0], log.last())
	}
	n.cloud.Answer(nil)
	defer close(gate)
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -1, Gate: gate, GateAt: 7})
	n.chat(`,"stream":true`)
	settled(t, log, 2)
	if len(p.escalated) != 1 || log.last().Propensity != 0 {
		t.Errorf("an unfinished draft teaches: %+v by %+v", p.escalated, log.last())
	}
}

// Nothing is asked for a label that privacy, mode, a limit or a failure keeps
// here.
func TestWhatIsNeverShadowed(t *testing.T) {
	n, p, log := startPupil(t)
	for i, tt := range []struct {
		name  string
		reply workertest.Reply
		model string
		head  []string
		body  string
	}{
		{"local-only", confident, "auto", []string{"X-Weir-Privacy", "local-only"}, ""},
		{"edge-only", confident, "auto", []string{"X-Weir-Mode", "edge-only"}, ""},
		{"prefer-edge", confident, "auto", []string{"X-Weir-Mode", "prefer-edge"}, ""},
		{"the edge's model by name", confident, "hub-edge", nil, ""},
		{"no signal", workertest.Reply{Text: "x y", NoProbs: true}, "auto", []string{"X-Weir-Mode", "prefer-edge"}, ""},
	} {
		n.worker.Set(tt.reply)
		n.send("/v1/chat/completions", `{"model":"`+tt.model+`",`+hello+tt.body+`}`, tt.head...)
		settled(t, log, i+1)
		if r := log.last(); r.Propensity != 0 || r.Shadow {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
	n.cloud.Answer(func(w http.ResponseWriter, _ *http.Request) { openai.Unavailable("busy", 0, "no").Write(w, nil) })
	n.worker.Set(unsure)
	if a := n.chat(""); a.weir.Reason != cascade.ReasonCloudError {
		t.Errorf("%+v", a.weir)
	}
	settled(t, log, 6)
	n.server.Close() // and with it the handlers
	if len(p.drawn) != 0 || len(p.escalated) != 0 || len(p.shadowed) != 0 {
		t.Errorf("drawn %v, escalated %v, shadowed %v", p.drawn, p.escalated, p.shadowed)
	}
}

// What was learned decides: a new fit at once; a signal that finds no wrong
// answers gives way to the class's means; what rests on no labels is not believed.
func TestLearnedCalibrationDecides(t *testing.T) {
	n, p, _ := startPupil(t)
	n.worker.Set(confident)
	for _, tt := range []struct {
		name   string
		change func(*learn.View)
		tier   cascade.Tier
		reason cascade.Reason
	}{
		{"shipped", func(*learn.View) {}, cascade.TierEdge, cascade.ReasonConfident},
		{"fitted anew", func(v *learn.View) { v.Calibration.Bias = -10 }, cascade.TierCloud, cascade.ReasonLowConfidence},
		{"an unusable signal of a good model", func(v *learn.View) { v.Grade, v.EdgeQuality = learn.GradeUnusable, .9 }, cascade.TierEdge, cascade.ReasonSignalUnusable},
		{"an unusable signal of a bad model", func(v *learn.View) { v.EdgeQuality = .3 }, cascade.TierCloud, cascade.ReasonSignalUnusable},
		{"no labels", func(v *learn.View) { v.Grade, v.Calibrated = learn.GradeUnknown, false }, cascade.TierCloud, cascade.ReasonSignalUnusable},
		{"another model", func(v *learn.View) { v.Calibrated, v.Calibration.Fingerprint = true, "other" }, cascade.TierCloud, cascade.ReasonSignalUnusable},
	} {
		p.set(tt.change)
		if a := n.chat(""); a.weir.Tier != tt.tier || a.weir.Reason != tt.reason {
			t.Errorf("%s: %+v", tt.name, a.weir)
		}
	}
}

// An answer of the cloud that was cut teaches nothing; what it cost is charged, and
// the most it can have cost where that is not known.
func TestCutAnswersDoNotTeach(t *testing.T) {
	n, p, log := startPupil(t)
	prices := n.cloud.DefaultSnapshot(2)
	prices.Prices = cloudtest.Prices(1, 1)
	n.cloud.SetSnapshot(t, prices)
	n.poll()
	n.worker.Set(unsure)
	for i, stream := range []string{"", `,"stream":true`} {
		n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) {
			cut := httptest.NewRecorder()
			cloudtest.Say("from the")(cut, r)
			maps.Copy(w.Header(), cut.Header())
			_, _ = w.Write(bytes.ReplaceAll(cut.Body.Bytes(), []byte(`"stop"`), []byte(`"length"`)))
		})
		n.chat(stream)
		settled(t, log, i+1)
	}
	n.worker.Set(confident)
	n.chat("")
	eventually(t, "the shadow call", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.shadowed) == 1 })
	n.cloud.Answer(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{")) })
	n.chat("")
	eventually(t, "the next", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.shadowed) == 2 })
	if a := p.answers[0]; a.Text != "" || a.CostNano != 1000 || p.failed[0] != nil {
		t.Errorf("cut: %+v %v", a, p.failed[0])
	}
	if a := p.answers[1]; a.CostNano != p.bounds[1] || a.CostNano == 0 || p.failed[1] == nil {
		t.Errorf("unreadable: %+v of %d, %v", a, p.bounds[1], p.failed[1])
	}
	if len(p.escalated) != 0 {
		t.Errorf("cut answers teach: %q", p.heard)
	}
}

// Shadow calls are the tenant's budget's to pay, and none is made when it is
// used up.
func TestShadowsAreCharged(t *testing.T) {
	n, p, log := startPupil(t)
	s := n.cloud.DefaultSnapshot(2)
	s.Prices = cloudtest.Prices(1, 1) // micro-dollars per million: a call has a bound of some nano-dollars
	s.Policies = []tenants.Policy{{TenantID: cloudtest.Tenant, Spec: json.RawMessage(`{"budget":{"per_day_nano":5000,"right_nano":100}}`)}}
	n.cloud.SetSnapshot(t, s)
	n.poll()
	n.worker.Set(confident)
	for i := range 6 { // each shadow costs 1000 nano-dollars
		n.chat("")
		settled(t, log, i+1)
	}
	eventually(t, "all lessons", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.shadowed) >= 5 && len(p.shadowed) == len(p.drawn)
	})
	if calls := len(n.cloud.Seen()); calls != 5 {
		t.Errorf("%d calls were paid from a budget for 5", calls)
	}
}
