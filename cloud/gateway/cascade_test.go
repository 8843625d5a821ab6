package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// smallSays answers as the small pool's model, with one token of a
// log-probability.
func smallSays(text string, logprob float64) func(http.ResponseWriter, *http.Request, map[string]any) bool {
	return func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		if body["stream"] == true {
			return (&smallScript{words: []string{text}, probs: []float64{logprob}}).serve(w, r, body)
		}
		if r.URL.Path == "/v1/completions" {
			fmt.Fprintf(w, `{"id":"s","object":"text_completion","created":1,"model":"small","choices":[{"index":0,"text":%q,"finish_reason":"stop","logprobs":{"tokens":["x"],"token_logprobs":[%v]}}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`, text, logprob)
			return true
		}
		fmt.Fprintf(w, `{"id":"s","object":"chat.completion","created":1,"model":"small","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop","logprobs":{"content":[{"token":"x","logprob":%v}]}}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`, text, logprob)
		return true
	}
}

// cascaded is a cascade whose beginnings are judged after two tokens.
func cascaded(t testing.TB, set policy.Settings, continues bool) Model {
	t.Helper()
	terms := []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}
	entry, err := cascading.New(cascading.Options{Tiers: []cascading.Tier{{Pool: "small", Calibration: cascade.Calibration{Version: 1, Fingerprint: "fp", Bias: .5, Threshold: .75, Terms: terms,
		Prefix: &cascade.Prefix{Tokens: 2, Bias: .5, Terms: terms, PhiMean: 6, PhiSD: 1}}}, {Pool: "big"}}, Policy: set, Continues: continues})
	if err != nil {
		t.Fatal(err)
	}
	return Model{Pool: "big", Cascade: entry}
}

// cascadeRig serves auto as a cascade over a small and a large instance.
func cascadeRig(t *testing.T, adjust func(*Options)) (r *rig, small, large *instanceFake) {
	t.Helper()
	small, large = newInstance(t, "s", "mixed"), newInstance(t, "l", "mixed")
	small.model, small.weights = "small", "fp"
	r = newRig(t, func(o *Options) {
		o.Models["auto"] = cascaded(t, policy.Settings{Name: "cloudy"}, false)
		if adjust != nil {
			adjust(o)
		}
	}, small, large)
	return r, small, large
}

// newRows are the ledger rows since the last call.
func (r *rig) newRows(t *testing.T) []tenants.UsageRecord {
	t.Helper()
	rows := r.ledger(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = nil
	return rows
}

func weirAt(t *testing.T, got reply) contract.Result {
	t.Helper()
	raw, err := json.Marshal(weirOf(t, got.body))
	if err != nil {
		t.Fatal(err)
	}
	var w contract.Result
	if err := json.Unmarshal(raw, &w); err != nil {
		t.Fatal(err)
	}
	return w
}

// A confident answer of the small pool is the answer: one row, at its price.
func TestCascadeKeeps(t *testing.T) {
	r, small, large := cascadeRig(t, nil)
	small.on(smallSays("small talk", -.001))
	got := r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`)
	w := weirAt(t, got)
	if got.status != 200 || w.Tier != cascade.TierCloud || w.Model != "small" || w.Reason != cascade.ReasonConfident || w.Attempts != 1 || w.Confidence == nil ||
		got.header.Get(contract.HeaderPolicy) != "cloudy" || w.CloudTokens != 2 || w.CostUSD != 9000 || got.header.Get(contract.HeaderModel) != "small" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if strings.Contains(string(got.body), `"logprob"`) || !strings.Contains(string(got.body), "small talk") {
		t.Errorf("%s", got.body)
	}
	if rows := r.newRows(t); len(rows) != 1 || rows[0].Model != "small" || rows[0].Outcome != tenants.OutcomeOK || rows[0].CostNanoUSD != 9000 {
		t.Errorf("rows %+v", rows)
	}
	if body, _ := small.last(); body["logprobs"] != true || body["stream"] == true || large.decodes.Load() != 0 {
		t.Errorf("the small pool was asked %v", body)
	}
	got = r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}],"logprobs":true}`)
	if !strings.Contains(string(got.body), `"logprob"`) {
		t.Errorf("log-probabilities that were asked for are gone: %s", got.body)
	}
}

// A doubtful answer gives way: two rows of one operation, both charged, and the
// client is told the sum.
func TestCascadeEscalates(t *testing.T) {
	r, small, _ := cascadeRig(t, nil)
	small.on(smallSays("hm", -3))
	got := r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`)
	w, rows := weirAt(t, got), r.newRows(t)
	if w.Model != "big" || w.Reason != cascade.ReasonLowConfidence || w.Attempts != 2 || w.Confidence == nil || *w.Confidence > .75 || got.header.Get(contract.HeaderPolicy) != "cloudy" || w.CloudTokens != 6 {
		t.Errorf("%s", got.body)
	}
	if len(rows) != 2 || rows[0].OperationID != rows[1].OperationID || rows[0].Model != "small" || rows[0].Outcome != tenants.OutcomeEscalated ||
		rows[1].Model != "big" || rows[1].Outcome != tenants.OutcomeOK || rows[1].InputTokens != 7 || rows[0].Attempt != 2 || rows[1].Attempt != 1 {
		t.Fatalf("rows %+v", rows)
	}
	if sum := rows[0].CostNanoUSD + rows[1].CostNanoUSD; rows[0].CostNanoUSD != 9000 || int64(w.CostUSD) != sum {
		t.Errorf("the client is told %v, the rows have %d", w.CostUSD, sum)
	}
	if strings.Contains(string(got.body), "hm") {
		t.Errorf("the draft is in the answer: %s", got.body)
	}
}

func TestCascadeStreams(t *testing.T) {
	r, small, _ := cascadeRig(t, nil)
	for _, tt := range []struct {
		logprob float64
		path    string
		text    string
		model   string
	}{
		{-.001, "chat/completions", "small talk", "small"},
		{-3, "chat/completions", "the light is on", "big"},
		{-.001, "completions", "small talk", "small"},
	} {
		small.on(smallSays("small talk", tt.logprob))
		got := r.do(t, http.MethodPost, "/v1/"+tt.path, r.key, `{"model":"auto","stream":true,"stream_options":{"include_usage":true},`+map[bool]string{true: `"prompt":"hi"}`, false: `"messages":[{"role":"user","content":"hi"}]}`}[tt.path == "completions"])
		text, last, done := "", contract.Result{}, false
		for line := range strings.Lines(string(got.body)) {
			data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
			if !ok {
				continue
			}
			if data == "[DONE]" {
				done = true
				continue
			}
			var e struct {
				Choices []struct {
					Delta struct{ Content string }
					Text  string
				}
				Weir *contract.Result
			}
			if err := json.Unmarshal([]byte(data), &e); err != nil || done || last.Tier != "" {
				t.Fatalf("%v: %s", err, got.body)
			}
			for _, c := range e.Choices {
				text += c.Delta.Content + c.Text
			}
			if e.Weir != nil {
				last = *e.Weir
			}
		}
		if text != tt.text || !done || last.Model != tt.model || last.Tier != cascade.TierCloud {
			t.Errorf("%s at %v: %q, %+v\n%s", tt.path, tt.logprob, text, last, got.body)
		}
	}
}

// What another cascade let over, or wants a label for, goes to the large pool
// at once; so does a named model, and what can be no single judged answer.
func TestWhatIsNotCascaded(t *testing.T) {
	r, small, _ := cascadeRig(t, nil)
	small.on(smallSays("small talk", -.001))
	x := exchange{ask: ask{model: r.opts.Models["auto"], req: &openai.Request{}}}
	if a := (&admitted{exchange: &x}); !a.cascades() {
		t.Error("nothing is cascaded")
	}
	if drafts := x.work("big").Drafts; len(drafts) != 1 || drafts[0] != "small" {
		t.Errorf("admission is asked for drafts of %q", drafts)
	}
	x.ask.opts.Draft = &contract.Draft{Reason: cascade.ReasonLowConfidence}
	if a := (&admitted{exchange: &x}); a.cascades() {
		t.Error("an escalated request is cascaded again")
	}
	if drafts := x.work("big").Drafts; drafts != nil {
		t.Errorf("admission is asked for drafts of %q", drafts)
	}
	for _, body := range []string{`{"model":"big","messages":[{"role":"user","content":"hi"}]}`, `{"model":"auto","n":2,"messages":[{"role":"user","content":"hi"}]}`} {
		if got := r.chat(t, body); weirAt(t, got).Model != "big" {
			t.Errorf("%s: %s", body, got.body)
		}
	}
	if body, _ := small.last(); body != nil {
		t.Errorf("the small pool was asked %v", body)
	}
}

// A small pool that cannot answer costs a row and no more.
func TestCascadeWithoutItsSmallPool(t *testing.T) {
	r, small, _ := cascadeRig(t, nil)
	for _, tt := range []struct {
		name   string
		hook   func(http.ResponseWriter, *http.Request, map[string]any) bool
		reason cascade.Reason
		row    tenants.Outcome
	}{
		{"refuses", says(400, `{"error":{"message":"too long","code":"context_length_exceeded"}}`), cascade.ReasonCapability, tenants.OutcomeRejected},
		{"no log-probabilities", says(200, `{"id":"s","model":"small","choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`), cascade.ReasonSignalUnusable, tenants.OutcomeEscalated},
		{"no answer", says(200, `{"choices":[]}`), cascade.ReasonEdgeUnavailable, tenants.OutcomeUpstreamError},
		{"gives it away", says(200, `{"id":"s","model":"small","choices":[{"index":0,"message":{"content":"hal"},"finish_reason":"migrated","logprobs":{"content":[{"token":"x","logprob":-0.001}]}}],"weir_migrated":{"weir_resume":{"text":"hal"}}}`), cascade.ReasonEdgeUnavailable, tenants.OutcomeUpstreamError},
		{"dies", dies, cascade.ReasonEdgeUnavailable, tenants.OutcomeUpstreamError},
	} {
		small.on(tt.hook)
		got := r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`)
		rows := r.newRows(t)
		if w := weirAt(t, got); got.status != 200 || w.Model != "big" || w.Reason != tt.reason || w.Attempts != 2 {
			t.Errorf("%s: %d %s", tt.name, got.status, got.body)
		}
		if len(rows) != 2 || rows[0].Outcome != tt.row || rows[1].Outcome != tenants.OutcomeOK {
			t.Errorf("%s: rows %+v", tt.name, rows)
		}
	}
}

// A small pool that hangs does not use up the time of a whole answer.
func TestCascadeOverAHangingPool(t *testing.T) {
	t.Parallel()
	r, small, _ := cascadeRig(t, func(o *Options) { o.Timeouts.FirstByte, o.Timeouts.Stall = 6*time.Second, time.Millisecond })
	small.on(small.hangsAfter(0))
	if w := weirAt(t, r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`)); w.Model != "big" || w.Reason != cascade.ReasonEdgeUnavailable {
		t.Errorf("answer %+v", w)
	}
}

// A cost cap holds for both pools together.
func TestCascadeUnderACap(t *testing.T) {
	r, small, _ := cascadeRig(t, nil)
	small.on(smallSays("hm", -3))
	got := r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`, contract.HeaderMaxCost, "0.0003")
	body, _ := small.last()
	most, _ := body["max_tokens"].(float64)
	// Both prompts at most (32+64) bytes at 1 micro-dollar, then both answers at 2.
	if got.status != 200 || most < 10 || most > 28 {
		t.Errorf("%d, max_tokens %v: %s", got.status, most, got.body)
	}
}

// A draft counts once, also when the large pool's stream is continued, and is no
// part of the usage that the client is told of the answer.
func TestCascadeContinued(t *testing.T) {
	a := &admitted{exchange: &exchange{story: &explanation{Attempts: make([]explainedTry, 1)}}}
	a.tries.draft = tenants.UsageRecord{InputTokens: 5, OutputTokens: 2, CostNanoUSD: 10}
	for i, want := range []tenants.UsageRecord{{InputTokens: 12, OutputTokens: 5, CostNanoUSD: 110}, {InputTokens: 12, OutputTokens: 9, CostNanoUSD: 210}} {
		at := &attempt{admitted: a, used: used{delivered: 3 + i}}
		a.ask.model.Pool = "big"
		row := tenants.UsageRecord{OutputTokens: int64(3 + i), CostNanoUSD: 100}
		if i == 0 {
			row.InputTokens = 7
		} else if u := readUsage(at.wholeUsage(&openai.Usage{CompletionTokens: 4})); u.CompletionTokens != 7 {
			t.Errorf("the client is told %d tokens of the answer", u.CompletionTokens)
		}
		at.addUp(row)
		at.carry()
		if a.last != want {
			t.Errorf("after attempt %d: %+v, want %+v", i+1, a.last, want)
		}
	}
}
