package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/tenants"
)

// explainedOf fetches what a gateway tells of an answered request.
func (r *rig) explainedOf(t *testing.T, got reply) (e explanation) {
	t.Helper()
	raw := r.do(t, http.MethodGet, "/v1/weir/requests/"+got.header.Get("X-Request-Id"), r.key, "")
	if err := json.Unmarshal([]byte(raw.body), &e); err != nil || raw.status != http.StatusOK {
		t.Fatalf("%d %s: %v", raw.status, raw.body, err)
	}
	return e
}

// layers are three pools of which the first two answer with so sure words.
func layers(t *testing.T, small, mid float64, quality ...float64) *rig {
	var all []*instanceFake
	for _, name := range []string{"small", "mid", "big"} {
		f := newInstance(t, name, "mixed")
		f.model, f.weights = name, name
		all = append(all, f)
	}
	all[0].on(smallSays("small talk", small))
	all[1].on(midSays(mid))
	set := policy.Settings{Value: &policy.Value{RightNano: 1e7}}
	return newRig(t, func(o *Options) { o.Models["auto"] = layered(t, set, []string{"small", "mid", "big"}, quality...) }, all...)
}

// An attempt that follows a failure within a pool was not let over, and a pool
// without an instance is told of once.
func TestRetriesAreNotLetOver(t *testing.T) {
	small, l1, l2 := newInstance(t, "s", "mixed"), newInstance(t, "l1", "mixed"), newInstance(t, "l2", "mixed")
	small.model, small.weights = "small", "small"
	small.on(smallSays("small talk", -3))
	r := newRig(t, func(o *Options) {
		o.Models["auto"] = polled(t, policy.Settings{}, 0, "small", "big")
		o.MaxAttempts = 4
	}, small, l1, l2)
	for _, in := range []*instanceFake{l1, l2} {
		in.on(says(503, `{}`))
	}
	e := r.explainedOf(t, r.chat(t, `{"model":"auto","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`))
	told := ""
	for _, a := range e.Attempts {
		told += a.Pool + "/" + string(a.Why) + "/" + string(a.Rejected) + " "
	}
	if told != "small// big/low_confidence/ big// big//all_failed " {
		t.Errorf("attempts %s", told)
	}
}

const askThree = `{"model":"auto","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`

// A cascade's way is explained pool by pool: what was judged and why it gave way,
// what the route expected of the others, and why each was taken.
func TestCascadeIsExplained(t *testing.T) {
	r := layers(t, -3, -4, .6, .85, .95)
	got := r.chat(t, askThree)
	e := r.explainedOf(t, got)
	if len(e.Attempts) != 3 || e.Weir.Model != "big" {
		t.Fatalf("%+v", e)
	}
	for i, want := range []struct {
		pool, next string
		why        cascade.Reason
		outcome    tenants.Outcome
		states     []cascading.Standing
	}{
		{"small", "mid", "", tenants.OutcomeEscalated, []cascading.Standing{cascading.StandingJudged, cascading.StandingOpen, cascading.StandingOpen}},
		{"mid", "big", cascade.ReasonLowConfidence, tenants.OutcomeEscalated, []cascading.Standing{cascading.StandingJudged, cascading.StandingJudged, cascading.StandingOpen}},
		{"big", "", cascade.ReasonLowConfidence, tenants.OutcomeOK, nil},
	} {
		a := e.Attempts[i]
		if a.Pool != want.pool || a.Why != want.why || a.Outcome != want.outcome || (a.Judged == nil) != (want.states == nil) {
			t.Errorf("attempt %d: %+v", i, a)
			continue
		}
		if want.states == nil {
			continue
		}
		j := a.Judged
		if j.Kept || j.Next != want.next || j.Reason != cascade.ReasonLowConfidence || j.Confidence == nil || *j.Confidence > .2 || j.Scores == nil ||
			j.Scores.Bound <= 0 || !(j.Scores.Theta > 0) || len(j.Scores.Route) != len(want.states) {
			t.Fatalf("attempt %d: %+v, scores %+v", i, j, j.Scores)
		}
		for k, w := range j.Scores.Route {
			if w.State != want.states[k] || w.Pool != e.Attempts[k].Pool || !(w.Price > 0) || w.State == cascading.StandingJudged && w.Quality != *e.Attempts[k].Judged.Confidence {
				t.Errorf("attempt %d: the route saw %+v", i, w)
			}
		}
	}
	if !strings.Contains(r.log.String(), `confidences="small=0.141 mid=0.057"`) {
		t.Errorf("the log does not tell the confidences: %s", r.log.String())
	}
	plain := r.do(t, http.MethodGet, "/v1/weir/requests/"+got.header.Get("X-Request-Id"), r.narrow, "")
	if strings.Contains(plain.body, "scores") || !strings.Contains(plain.body, `"judged":{"kept":false,"reason":"low_confidence","confidence":`) {
		t.Errorf("without the scope: %s", plain.body)
	}
}

// An answer that stands because the other was no better is told with its own
// confidence.
func TestTheBetterOfTwoTellsItsOwnConfidence(t *testing.T) {
	r := layers(t, -1.1, -4, .6, .9, .01)
	got := r.chat(t, askThree)
	e, w := r.explainedOf(t, got), weirAt(t, got)
	if len(e.Attempts) != 2 || w.Model != "small" || w.Confidence == nil || *w.Confidence < .2 || !e.Attempts[0].Judged.Kept || e.Attempts[1].Judged.Kept {
		t.Fatalf("%s", got.body)
	}
	if mid := *e.Attempts[1].Judged.Confidence; *w.Confidence <= mid || *e.Attempts[0].Judged.Confidence != *w.Confidence {
		t.Errorf("the client is told %v, the other answer has %v", *w.Confidence, mid)
	}
}

// A form that was broken, an answer that broke off and one that was kept say so.
func TestWhatBecameOfADraftIsExplained(t *testing.T) {
	r, small, _ := cascadeRig(t, nil)
	for _, tt := range []struct {
		says func(http.ResponseWriter, *http.Request, map[string]any) bool
		want explainedDraft
	}{
		{smallSays(`{"a":1}`, -.001), explainedDraft{Kept: true, Reason: cascade.ReasonConfident}},
		{smallSays("no JSON", -.001), explainedDraft{Reason: cascade.ReasonValidatorFailed, Broken: true, Next: "big"}},
		{dies, explainedDraft{Reason: cascade.ReasonEdgeUnavailable, Lost: true, Next: "big"}},
	} {
		small.on(tt.says)
		e := r.explainedOf(t, r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_object"}}`))
		got := *e.Attempts[0].Judged
		if known := got.Confidence != nil; known == tt.want.Lost || got.Scores == nil {
			t.Errorf("%+v", got)
		}
		if got.Confidence, got.Scores = nil, nil; got != tt.want {
			t.Errorf("%+v, want %+v", got, tt.want)
		}
		if tt.want.Kept != (len(e.Attempts) == 1) {
			t.Errorf("%+v", e.Attempts)
		}
	}
}
