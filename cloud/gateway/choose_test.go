package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/tiers"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// equalPools are models of two pools that are equals: alone as any, and after a
// small one as auto.
func equalPools(t testing.TB, set policy.Settings) (anyOf, auto *cascading.Entry) {
	t.Helper()
	small := cascading.Tier{Pool: "small", Calibration: cascade.Calibration{Version: 1, Fingerprint: "fp", Bias: .5, Threshold: .75,
		Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}}}
	two := []cascading.Tier{{Pool: "a"}, {Pool: "b"}}
	anyOf, err := cascading.New(cascading.Options{Tiers: two, Equals: 2, Policy: set})
	if err == nil {
		auto, err = cascading.New(cascading.Options{Tiers: append([]cascading.Tier{small}, two...), Equals: 2, Policy: set})
	}
	if err != nil {
		t.Fatal(err)
	}
	return anyOf, auto
}

// chooseRig serves both over three instances.
func chooseRig(t *testing.T, adjust func(*Options)) (r *rig, small, a, b *instanceFake) {
	t.Helper()
	small, a, b = newInstance(t, "s", "mixed"), newInstance(t, "a", "mixed"), newInstance(t, "b", "mixed")
	small.model, small.weights, a.model, b.model = "small", "fp", "a", "b"
	small.on(smallSays("hm", -3))
	r = newRig(t, func(o *Options) {
		anyOf, auto := equalPools(t, policy.Settings{})
		o.Models = map[string]Model{"any": {Pool: "a", Cascade: anyOf}, "auto": {Pool: "a", Cascade: auto}}
		if adjust != nil {
			adjust(o)
		}
	}, small, a, b)
	return r, small, a, b
}

// explained is what the gateway tells of a request, once it does.
func (r *rig) explained(t *testing.T, got reply, key string) (e explanation) {
	t.Helper()
	await(t, "an explanation", func() bool {
		x := r.do(t, http.MethodGet, "/v1/weir/requests/"+got.header.Get(contract.HeaderRequestID), key, "")
		return x.status == http.StatusOK && json.Unmarshal([]byte(x.body), &e) == nil
	})
	return e
}

func askOf(model, more string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hi"}]%s}`, model, more)
}

// Requests go to both of two pools that nothing is known of, each with its
// propensity in the explanation and the log; scores of candidates need the scope.
func TestEqualPoolsAreChosenAmong(t *testing.T) {
	for _, model := range []string{"any", "auto"} {
		r, _, _, _ := chooseRig(t, nil)
		seen := map[string]bool{}
		for i := 0; i < 100 && len(seen) < 2; i++ {
			got := r.chat(t, askOf(model, ""))
			w, e := weirAt(t, got), r.explained(t, got, r.key)
			seen[w.Model] = true
			if e.Choice == nil || e.Choice.Pool != w.Model || e.Choice.How != cascading.HowDrawn || e.Choice.Propensity != .5 || len(e.Choice.Candidates) != 2 {
				t.Fatalf("%s: %s, %+v", model, got.body, e.Choice)
			}
			if model == "auto" && (w.Attempts != 2 || w.Reason != cascade.ReasonLowConfidence) {
				t.Errorf("%s", got.body)
			}
			if plain := r.do(t, http.MethodGet, "/v1/weir/requests/"+e.Operation, r.narrow, ""); !strings.Contains(plain.body, `"propensity":0.5`) || strings.Contains(plain.body, "candidates") {
				t.Errorf("without the scope: %s", plain.body)
			}
		}
		if len(seen) != 2 || !strings.Contains(r.log.String(), "propensity=0.5") {
			t.Errorf("%s: only %v answered", model, seen)
		}
	}
}

// What the arms have earned decides, and a session stays where it began.
func TestEqualPoolsBySessionAndArms(t *testing.T) {
	r, _, _, _ := chooseRig(t, nil)
	arms := func(a, b float64) {
		r.opts.Models["any"].Cascade.SetArms(cascading.Arms{{Class: "gold", Pool: "a"}: tiers.Arm{Right: a, Wrong: 1000 - a}, {Class: "gold", Pool: "b"}: tiers.Arm{Right: b, Wrong: 1000 - b}})
	}
	arms(100, 900)
	tool := `,"tools":[{"type":"function","function":{"name":"f"}}]`
	ask := func(more string, header ...string) (string, cascading.How) {
		got := r.chat(t, askOf("any", more), header...)
		return weirAt(t, got).Model, r.explained(t, got, r.key).Choice.How
	}
	for _, first := range []struct {
		more   string
		header []string
	}{{"", []string{contract.HeaderSession, "one"}}, {tool, nil}} {
		if model, how := ask(first.more, first.header...); model != "b" || how != cascading.HowDrawn {
			t.Errorf("%s is chosen, %s", model, how)
		}
	}
	arms(900, 100)
	if model, _ := ask(""); model != "a" {
		t.Errorf("%s is chosen", model)
	}
	if model, how := ask("", contract.HeaderSession, "one"); model != "b" || how != cascading.HowSession {
		t.Errorf("the session goes to %s, %s", model, how)
	}
	if model, how := ask("", contract.HeaderSession, "two"); model != "a" || how != cascading.HowDrawn {
		t.Errorf("another session goes to %s, %s", model, how)
	}
	chain := r.chat(t, `{"model":"any","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c","content":"x"}]`+tool+`}`)
	if model := weirAt(t, chain).Model; model != "b" || r.explained(t, chain, r.key).Choice.How != cascading.HowSession {
		t.Errorf("the chain of tool calls goes to %s", model)
	}
	if other := r.do(t, http.MethodPost, "/v1/chat/completions", r.other, askOf("any", ""), contract.HeaderSession, "one"); weirAt(t, other).Model != "a" {
		t.Errorf("another tenant's session of the same name: %s", other.body)
	}
}

// The pool that was not chosen stands in for one that fails or has nobody, within
// the cap of attempts.
func TestEqualPoolsStandIn(t *testing.T) {
	for _, model := range []string{"any", "auto"} {
		for name, harm := range map[string]func(*instanceFake){"dies": func(f *instanceFake) { f.on(dies) },
			"refuses": func(f *instanceFake) { f.on(says(500, `{"error":{"message":"x"}}`)) }} {
			r, _, a, b := chooseRig(t, nil)
			r.opts.Models[model].Cascade.SetArms(cascading.Arms{{Class: "gold", Pool: "a"}: tiers.Arm{Right: 1000}, {Class: "gold", Pool: "b"}: tiers.Arm{Wrong: 1000}})
			harm(a)
			got := r.chat(t, askOf(model, `,"stream":true`))
			if w := weirAt(t, endOf(got)); got.status != 200 || w.Model != "b" || !strings.Contains(got.body, "the ") {
				t.Errorf("%s, %s: %d %s", model, name, got.status, got.body)
			}
			b.on(dies)
			if got := r.chat(t, askOf("any", "")); got.status < 500 {
				t.Errorf("both fail: %d %s", got.status, got.body)
			}
		}
	}
	r, _, a, _ := chooseRig(t, nil)
	a.sick.Store(true)
	await(t, "pool a is lost", func() bool { return !r.allReady() })
	for range 5 {
		got := r.chat(t, askOf("any", ""))
		if w := weirAt(t, got); w.Model != "b" || w.Attempts != 1 || r.explained(t, got, r.key).Choice.How != cascading.HowOnly {
			t.Errorf("%s", got.body)
		}
	}
}

// A cost cap that only one pool's price leaves room under leaves that one.
func TestEqualPoolsUnderACap(t *testing.T) {
	r, _, _, _ := chooseRig(t, func(o *Options) {
		index := o.Directory.Index()
		snap := *index.Snapshot()
		snap.Prices = append(snap.Prices, tenants.Price{Version: 4, Tier: tenants.Cloud, Model: "a", Input: 1_000_000_000, CachedInput: 1_000_000_000, Output: 1_000_000_000})
		dear, err := tenants.NewIndex(&snap)
		if err != nil {
			t.Fatal(err)
		}
		o.Directory = directory(func() *tenants.Index { return dear })
	})
	for range 5 {
		got := r.chat(t, askOf("any", `,"max_tokens":20`), contract.HeaderMaxCost, "0.01")
		if w := weirAt(t, got); got.status != 200 || w.Model != "b" || r.explained(t, got, r.key).Choice.Candidates[0].Out != cascading.OutCostCap {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if got := r.chat(t, askOf("any", ""), contract.HeaderMaxCost, "0.0000001"); got.status != http.StatusBadRequest {
		t.Errorf("a cap beneath all: %d %s", got.status, got.body)
	}
}

// A pool stands in for another only where the cost cap pays for it beside the
// drafts before it.
func TestAStandInUnderACap(t *testing.T) {
	for price, model := range map[int64]string{3_900_000: "small", 1_900_000: "b"} { // dearer, or cheaper, than a
		r, _, a, _ := chooseRig(t, func(o *Options) {
			snap := *o.Directory.Index().Snapshot()
			snap.Prices = append(snap.Prices, tenants.Price{Version: 4, Tier: tenants.Cloud, Model: "b", Input: 1_000_000, CachedInput: 1_000_000, Output: price})
			index, err := tenants.NewIndex(&snap)
			if err != nil {
				t.Fatal(err)
			}
			o.Directory = directory(func() *tenants.Index { return index })
		})
		r.opts.Models["auto"].Cascade.SetArms(cascading.Arms{{Class: "gold", Pool: "a"}: tiers.Arm{Right: 1000}, {Class: "gold", Pool: "b"}: tiers.Arm{Wrong: 1000}})
		a.on(dies)
		if got := r.chat(t, askOf("auto", ""), contract.HeaderMaxCost, "0.01"); got.status != 200 || weirAt(t, got).Model != model {
			t.Errorf("b at %d: %d %s", price, got.status, got.body)
		}
	}
}

// A pool whose own limit has no room is not chosen, and one that a limit speaks of
// does not stand in.
func TestEqualPoolsUnderLimits(t *testing.T) {
	g := gate{settled: make(chan tenants.UsageRecord, 100)}
	full, pinned := "b", ""
	g.admit = func(context.Context, Work) (Grant, error) { return g, nil }
	g.room = func(w Work) bool { return w.Pool != full }
	g.moves = func(pool string) bool { return pool != pinned }
	r, _, a, _ := chooseRig(t, func(o *Options) { o.Admission = &g })
	for range 5 {
		got := r.chat(t, askOf("any", ""))
		if c := r.explained(t, got, r.key).Choice; weirAt(t, got).Model != "a" || c.How != cascading.HowOnly || c.Candidates[1].Out != cascading.OutQuota {
			t.Errorf("%s: %+v", got.body, c)
		}
	}
	r.opts.Models["any"].Cascade.SetArms(cascading.Arms{{Class: "gold", Pool: "a"}: tiers.Arm{Right: 1000}, {Class: "gold", Pool: "b"}: tiers.Arm{Wrong: 1000}})
	a.on(dies)
	full = ""
	if got := r.chat(t, askOf("any", "")); weirAt(t, got).Model != "b" {
		t.Errorf("%s", got.body)
	}
	pinned = "b"
	if got := r.chat(t, askOf("any", "")); got.status < 500 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// A choice counts once a request runs, and not for one that is turned away.
func TestChoicesThatCount(t *testing.T) {
	g := gate{settled: make(chan tenants.UsageRecord, 100)}
	shut := true
	g.admit = func(context.Context, Work) (Grant, error) {
		if shut {
			return nil, &openai.Error{Status: 429, Type: openai.TypeRateLimit, Code: "closed", Message: "closed"}
		}
		return g, nil
	}
	kept := &notes{}
	r, _, _, _ := chooseRig(t, func(o *Options) { o.Admission, o.Feedback = &g, kept })
	if got := r.chat(t, askOf("any", "")); got.status != 429 || strings.Contains(r.log.String(), "propensity") {
		t.Errorf("%d, %s", got.status, r.log.String())
	}
	shut = false
	first := r.chat(t, askOf("any", ""), contract.HeaderIdempotency, "one")
	again := r.chat(t, askOf("any", ""), contract.HeaderIdempotency, "one")
	if first.status != 200 || again.status != 200 {
		t.Errorf("%d %d", first.status, again.status)
	}
	counted := 0.0
	families, err := r.tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "weir_gateway_choices_total" {
				counted += m.GetCounter().GetValue()
			}
		}
	}
	if len(kept.answers) != 1 || counted != 1 {
		t.Errorf("%d answers, %v choices", len(kept.answers), counted)
	}
}

// notes are answers and scores in memory.
type notes struct {
	mu      sync.Mutex
	answers []Answer
	scores  []Score
	err     error
}

func (n *notes) Answered(a Answer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers = append(n.answers, a)
}

func (n *notes) last() Answer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.answers[len(n.answers)-1]
}
