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
	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
)

// polled is a cascade over pools, the last of which is not judged, whose votes of
// three are worth a lot where there are labels of them.
func polled(t testing.TB, set policy.Settings, labels int, pools ...string) Model {
	t.Helper()
	table := votesOf(labels)
	o := cascading.Options{Policy: set}
	for _, name := range pools {
		o.Tiers = append(o.Tiers, cascading.Tier{Pool: name, Quality: .9, Calibration: cascade.Calibration{Version: 1, Fingerprint: name, Bias: .5, Threshold: .75,
			Verifier: table, Quantiles: []float64{0, .1, .2, .3, .4, .5, .5, .6, .6, .6, .7, .7, .7, .7, .8, .8, .8, .8, .9, .9, 1},
			Terms:  []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}},
			Prefix: &cascade.Prefix{Tokens: 2, Bias: .5, Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}, PhiMean: 6, PhiSD: 1}}})
	}
	entry, err := cascading.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return Model{Pool: pools[len(pools)-1], Cascade: entry}
}

// votesOf is a table of so many labels of either kind, by which votes are worth a
// lot.
func votesOf(labels int) *verifier.Table {
	table := verifier.New(3)
	for range labels {
		table.Observe(verifier.BothRight, 3, 1)
		table.Observe(verifier.OnlyCloud, 0, 1)
	}
	return table
}

// votes answers questions about answers with P(YES) = yes, and all else by next.
func votes(yes float64, next func(http.ResponseWriter, *http.Request, map[string]any) bool) func(http.ResponseWriter, *http.Request, map[string]any) bool {
	return func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		if !asksForVotes(body) {
			return next(w, r, body)
		}
		fmt.Fprintf(w, `{"choices":[{"message":{"content":"YES"},"logprobs":{"content":[{"top_logprobs":[{"token":"YES","logprob":%g},{"token":"NO","logprob":%g}]}],"top_logprobs":[{"YES":%g,"NO":%g}]}}],"usage":{"prompt_tokens":20,"completion_tokens":1,"total_tokens":21}}`,
			-2*(1-yes), -2*yes, -9*(1-yes), -9*yes)
		return true
	}
}

func asksForVotes(body map[string]any) bool {
	raw, _ := json.Marshal(body)
	return strings.Contains(string(raw), "YES or NO")
}

// pollRig serves auto as such a cascade over a small and a large instance.
func pollRig(t *testing.T, labels int) (*rig, *instanceFake) {
	t.Helper()
	small, large := newInstance(t, "s", "mixed"), newInstance(t, "l", "mixed")
	small.model, small.weights = "small", "small"
	r := newRig(t, func(o *Options) {
		o.Models["auto"] = polled(t, policy.Settings{Verify: &policy.Verify{Samples: 3}}, labels, "small", "big")
	}, small, large)
	return r, small
}

// Votes turn a kept answer into an escalation and back. They are an attempt of
// their own, which is paid for and explained.
func TestVotesTurnTheVerdict(t *testing.T) {
	r, small := pollRig(t, 200)
	for _, tt := range []struct {
		name    string
		logprob float64
		yes     float64
		path    string
		model   string
		reason  cascade.Reason
		outcome string
	}{
		{"kept, and right", -.2, 1, "chat/completions", "small", cascade.ReasonConfident, "same"},
		{"kept, but wrong", -.2, 0, "chat/completions", "big", cascade.ReasonLowConfidence, "escalates"},
		{"doubtful, but right", -1, 1, "chat/completions", "small", cascade.ReasonConfident, "keeps"},
		{"doubtful, and wrong", -1, 0, "chat/completions", "big", cascade.ReasonLowConfidence, "same"},
		{"a text", -1, 1, "completions", "small", cascade.ReasonConfident, "keeps"},
	} {
		small.on(votes(tt.yes, smallSays("small talk", tt.logprob)))
		body := `{"model":"auto","max_tokens":9,"tools":null,"messages":[{"role":"user","content":"hi"}]}`
		if tt.path == "completions" {
			body = `{"model":"auto","max_tokens":9,"prompt":"hi"}`
		}
		got := r.do(t, http.MethodPost, "/v1/"+tt.path, r.key, body)
		w, rows := weirAt(t, got), r.newRows(t)
		if got.status != 200 || w.Model != tt.model || w.Reason != tt.reason {
			t.Errorf("%s: %d %s", tt.name, got.status, got.body)
		}
		want := 2
		if tt.model == "big" {
			want = 3
		}
		sum, asked := int64(0), 0
		for i, row := range rows {
			sum += row.CostNanoUSD
			if row.OperationID != rows[0].OperationID || int(row.Attempt) > 3 || i > 0 && row.AttemptID == rows[0].AttemptID {
				t.Errorf("%s: row %+v", tt.name, row)
			}
			if row.ErrorCode == "verify" {
				asked++
				if row.Outcome != tenants.OutcomeEscalated || row.InputTokens != 20 || row.OutputTokens != 1 || row.CostNanoUSD == 0 || row.Model != "small" || row.Attempt != 2 {
					t.Errorf("%s: row %+v", tt.name, row)
				}
			}
		}
		if len(rows) != want || asked != 1 || w.Attempts != want || int64(w.CostUSD) != sum {
			t.Errorf("%s: told %d attempts for %v, rows %+v", tt.name, w.Attempts, w.CostUSD, rows)
		}
		if e := string(r.do(t, http.MethodGet, "/v1/weir/requests/"+got.header.Get(contract.HeaderRequestID), r.key, "").body); !strings.Contains(e, "verify: "+tt.outcome) || strings.Contains(e, `"pool":""`) {
			t.Errorf("%s: explained by %s", tt.name, e)
		}
	}
}

// Nobody is asked where votes could change nothing, or must not.
func TestWhatIsNotPolled(t *testing.T) {
	r, small := pollRig(t, 200)
	unknown, bare := pollRig(t, 5)
	for _, tt := range []struct {
		name    string
		r       *rig
		small   *instanceFake
		says    func(http.ResponseWriter, *http.Request, map[string]any) bool
		body    string
		head    []string
		outcome string
	}{
		{"sure", r, small, smallSays("small talk", -.00001), "", nil, "certain"},
		{"hardly any labels", unknown, bare, smallSays("small talk", -.2), "", nil, "not_viable"},
		{"a broken form", r, small, smallSays("small talk", -.2), `,"response_format":{"type":"json_object"}`, nil, "validator_failed"},
		{"a deadline", r, small, smallSays("small talk", -.2), "", []string{contract.HeaderDeadline, "59000"}, "deadline"}, // votes are waited for longer
		{"a cost cap", r, small, smallSays("small talk", -.2), "", []string{contract.HeaderMaxCost, "1"}, "blocked"},
		{"a stream that is shown", r, small, (&smallScript{words: []string{"a ", "b ", "c ", "d ", "e ", "f"}, probs: []float64{-.02}, cut: -1}).serve, `,"stream":true,"max_tokens":500`, nil, "shown"},
	} {
		asked := false
		tt.small.on(func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
			asked = asked || asksForVotes(body)
			return tt.says(w, r, body)
		})
		got := tt.r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}]`+tt.body+`}`, tt.head...)
		e := string(tt.r.do(t, http.MethodGet, "/v1/weir/requests/"+got.header.Get(contract.HeaderRequestID), tt.r.key, "").body)
		if got.status != 200 || asked || !strings.Contains(e, "verify: "+tt.outcome) {
			t.Errorf("%s: %d %s, explained by %s", tt.name, got.status, got.body, e)
		}
	}
}

// A pool that cannot say anything of use changes nothing, and costs what it took.
func TestVotesThatDoNotCome(t *testing.T) {
	r, small := pollRig(t, 200)
	for _, tt := range []struct {
		name    string
		vote    func(http.ResponseWriter, *http.Request, map[string]any) bool
		outcome string
		row     tenants.Outcome
	}{
		{"breaks", dies, "error", tenants.OutcomeUpstreamError},
		{"is busy", says(503, `{}`), "error", tenants.OutcomeUpstreamError},
		{"says neither", says(200, `{"choices":[{"logprobs":{"content":[{"top_logprobs":[{"token":"maybe","logprob":-1}]}]}}]}`), "unread", tenants.OutcomeEscalated},
		{"tells nothing", says(200, `{"choices":[{"message":{"content":"YES"}}]}`), "unsupported", tenants.OutcomeEscalated},
	} {
		small.on(func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
			if asksForVotes(body) {
				return tt.vote(w, r, body)
			}
			return smallSays("small talk", -.2)(w, r, body)
		})
		got := r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`)
		rows := r.newRows(t)
		if w := weirAt(t, got); w.Model != "small" || w.Reason != cascade.ReasonConfident {
			t.Errorf("%s: %s", tt.name, got.body)
		}
		if len(rows) != 2 || rows[0].ErrorCode != "verify" && rows[1].ErrorCode != "verify" {
			t.Fatalf("%s: rows %+v", tt.name, rows)
		}
		for _, row := range rows {
			if row.ErrorCode == "verify" && row.Outcome != tt.row {
				t.Errorf("%s: row %+v", tt.name, row)
			}
		}
		if e := string(r.do(t, http.MethodGet, "/v1/weir/requests/"+got.header.Get(contract.HeaderRequestID), r.key, "").body); !strings.Contains(e, "verify: "+tt.outcome) {
			t.Errorf("%s: explained by %s", tt.name, e)
		}
	}
	small.on(votes(0, smallSays("small talk", -.2)))
	got := r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`)
	if w := weirAt(t, got); w.Model != "small" || w.Attempts != 1 || len(r.newRows(t)) != 1 {
		t.Errorf("samples are asked for, which the table is not for: %s", got.body)
	}
}

// A pool whose votes do not come in time is left alone after three of them, and
// costs nothing then.
func TestVotesThatComeTooLate(t *testing.T) {
	small, large := newInstance(t, "s", "mixed"), newInstance(t, "l", "mixed")
	small.model, small.weights = "small", "small"
	r := newRig(t, func(o *Options) {
		o.Models["auto"] = polled(t, policy.Settings{Verify: &policy.Verify{Samples: 3}}, 200, "small", "big")
		o.Timeouts.Votes = 50 * time.Millisecond
	}, small, large)
	small.on(func(w http.ResponseWriter, req *http.Request, body map[string]any) bool {
		if asksForVotes(body) {
			<-req.Context().Done()
			return true
		}
		return smallSays("small talk", -.2)(w, req, body)
	})
	for i, want := range []string{"timeout", "timeout", "timeout", "slow"} {
		got := r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`)
		rows := 2
		if want == "slow" {
			rows = 1
		}
		if w := weirAt(t, got); w.Model != "small" || w.Attempts != rows || len(r.newRows(t)) != rows {
			t.Errorf("%d: %s", i, got.body)
		}
		if e := string(r.do(t, http.MethodGet, "/v1/weir/requests/"+got.header.Get(contract.HeaderRequestID), r.key, "").body); !strings.Contains(e, "verify: "+want) {
			t.Errorf("%d: explained by %s", i, e)
		}
	}
}

// With votes a request over three pools has two attempts left: the next pool is
// the last.
func TestVotesCountAsAnAttempt(t *testing.T) {
	names := []string{"small", "mid", "big"}
	var all []*instanceFake
	for _, name := range names {
		f := newInstance(t, name, "mixed")
		f.model, f.weights = name, name
		all = append(all, f)
	}
	all[0].on(votes(0, smallSays("small talk", -1)))
	all[1].on(midSays(-3))
	m := polled(t, policy.Settings{Verify: &policy.Verify{Samples: 3}, Value: &policy.Value{RightNano: 1e7}}, 200, names...)
	r := newRig(t, func(o *Options) { o.Models["auto"] = m }, all...)
	got := r.chat(t, `{"model":"auto","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`)
	asked := 0
	for _, f := range all {
		asked += int(f.asked())
	}
	if w := weirAt(t, got); w.Attempts > 3 || asked > 3 || w.Attempts != len(r.newRows(t)) {
		t.Errorf("%d requests: %s", asked, got.body)
	}
}

// Settings without a table for them are refused, and so are those of an entry
// without a small pool.
func TestVerifyIsChecked(t *testing.T) {
	cal := cascade.Calibration{Version: 1, Threshold: .5, Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}}
	with := cal
	with.Verifier = verifier.New(3)
	for _, tt := range []struct {
		cal     cascade.Calibration
		samples int
		equals  int
		want    string
	}{{cal, 3, 1, "verify-samples"}, {with, 5, 1, "verify-samples"}, {with, 3, 2, "small pool"}, {with, 3, 1, ""}} {
		_, err := cascading.New(cascading.Options{Tiers: []cascading.Tier{{Pool: "a", Calibration: tt.cal}, {Pool: "b"}}, Equals: tt.equals,
			Policy: policy.Settings{Verify: &policy.Verify{Samples: tt.samples}}})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%d of %d: %v, want %q", tt.samples, tt.equals, err, tt.want)
		}
	}
}
