package gateway

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/tenants"
)

// layered is a cascade over pools with the qualities given, the last of which is
// not judged. The models' fingerprints are the pools' names.
func layered(t testing.TB, set policy.Settings, pools []string, quality ...float64) Model {
	t.Helper()
	o := cascading.Options{Policy: set}
	for i, name := range pools {
		o.Tiers = append(o.Tiers, tierOf(name, quality[i]))
	}
	entry, err := cascading.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return Model{Pool: pools[len(pools)-1], Cascade: entry}
}

// tierOf is a tier whose model's fingerprint is the pool's name.
func tierOf(name string, quality float64) cascading.Tier {
	tier := cascading.Tier{Pool: name, Quality: quality, Calibration: cascade.Calibration{Version: 1, Fingerprint: name, Bias: .5, Threshold: .75,
		Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}}}
	for i := range 21 {
		tier.Calibration.Quantiles = append(tier.Calibration.Quantiles, .1+.045*float64(i))
	}
	return tier
}

// spent is a budget's controller that has paid for the day.
func spent(nano int64) policy.Saved {
	return policy.Saved{Day: time.Now().Unix() / 86400, Spent: nano}
}

// loses makes an instance one that is not ready, or is again.
func (r *rig) loses(t testing.TB, f *instanceFake, sick bool) {
	t.Helper()
	f.sick.Store(sick)
	await(t, "readiness of "+f.name, func() bool {
		all := r.opts.Pool.Status()
		return all[slices.IndexFunc(all, func(s pool.Status) bool { return s.Name == f.name })].Ready != sick
	})
}

// The limits of a cascade hold where a pool has no instance: the next one is
// asked only where that is worth its price and the budget holds it.
func TestLimitsWithoutInstances(t *testing.T) {
	two, three := []string{"small", "big"}, []string{"small", "mid", "big"}
	const right = 1e7
	for _, tt := range []struct {
		name    string
		pools   []string
		quality []float64
		there   []string
		spent   bool
		status  int
		by      string
		reason  cascade.Reason
	}{
		{"the large one instead", two, []float64{.6, .9}, []string{"big"}, false, 200, "big", cascade.ReasonEdgeUnavailable},
		{"no money for the large one", two, []float64{.6, .9}, []string{"big"}, true, 429, "", cascade.ReasonBudget},
		{"past a pool that is not worth it", three, []float64{.6, .01, .9}, []string{"mid", "big"}, false, 200, "big", cascade.ReasonEdgeUnavailable},
		{"no money for either", three, []float64{.6, .8, .9}, []string{"mid", "big"}, true, 429, "", cascade.ReasonBudget},
		{"back from an absent last one", three, []float64{.6, .01, .9}, []string{"mid"}, false, 200, "mid", cascade.ReasonConfident},
		{"the draft that waits", three, []float64{.6, .9, .01}, []string{"small", "big"}, false, 200, "small", cascade.ReasonLowConfidence},
		{"the large one after the draft", three, []float64{.6, .85, .95}, []string{"small", "big"}, false, 200, "big", cascade.ReasonLowConfidence},
		{"nobody", three, []float64{.6, .8, .9}, nil, false, 503, "", cascade.ReasonCloudError},
	} {
		var all []*instanceFake
		for _, name := range tt.pools {
			f := newInstance(t, name, "mixed")
			f.model, f.weights = name, name
			all = append(all, f)
			switch name {
			case "small":
				f.on(smallSays("small talk", -3))
			case "mid":
				f.on(midSays(-.001))
			}
		}
		m := layered(t, policy.Settings{Budget: &policy.Budget{PerDayNano: 1e9, RightNano: right}}, tt.pools, tt.quality...)
		if tt.spent {
			m.Cascade.Restore(spent(1e9))
		}
		r := newRig(t, func(o *Options) { o.Models["auto"] = m }, all...)
		for _, f := range all {
			r.loses(t, f, !slices.Contains(tt.there, f.name))
		}
		got := r.chat(t, `{"model":"auto","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`)
		w := weirAt(t, got)
		if got.status != tt.status || w.Model != tt.by && tt.status == 200 || w.Reason != tt.reason {
			t.Errorf("%s: %d %s", tt.name, got.status, got.body)
		}
		if tt.status != 200 && (len(r.newRows(t)) > 0 || slices.ContainsFunc(all, func(f *instanceFake) bool { return f.asked() > 0 })) {
			t.Errorf("%s: somebody was asked", tt.name)
		}
		if m.Cascade.Saved().Spent > 1e9 {
			t.Errorf("%s: %+v", tt.name, m.Cascade.Saved())
		}
	}
}

// A small pool that breaks unseen while the budget is empty goes on with its next
// instance, and the client is told why nobody judged the answer.
func TestBreaksUnderAnEmptyBudget(t *testing.T) {
	for _, stream := range []string{"false", "true"} {
		first, second := newInstance(t, "s1", "mixed"), newInstance(t, "s2", "mixed")
		var broke atomic.Bool
		for _, f := range []*instanceFake{first, second} {
			f.model, f.weights = "small", "small"
			says := smallSays("small talk", -.001)
			f.on(func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
				return broke.CompareAndSwap(false, true) && dies(w, r, body) || says(w, r, body)
			})
		}
		m := layered(t, policy.Settings{Budget: &policy.Budget{PerDayNano: 1e9, RightNano: 1e7}}, []string{"small", "big"}, .6, .9)
		m.Cascade.Restore(spent(1e9))
		r := newRig(t, func(o *Options) { o.Models["auto"] = m }, first, second, newInstance(t, "l", "mixed"))
		got := r.chat(t, strings.Replace(`{"model":"auto","stream":S,"messages":[{"role":"user","content":"hi"}]}`, "S", stream, 1))
		if w := weirAt(t, lastEvent(got)); got.status != 200 || w.Model != "small" || w.Reason != cascade.ReasonBudget || text(t, got.body) != "small talk" {
			t.Errorf("stream %s: %d %s", stream, got.status, got.body)
		}
		if rows := r.newRows(t); len(rows) != 2 || rows[1].Outcome != tenants.OutcomeOK || rows[1].Model != "small" {
			t.Errorf("stream %s: rows %+v", stream, rows)
		}
	}
}

func (f *instanceFake) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.bodies)
}

func (r *rig) allReady() bool {
	return !slices.ContainsFunc(r.opts.Pool.Status(), func(s pool.Status) bool { return !s.Ready })
}

// A pool's answer that nobody has seen costs nothing when it breaks off, also where
// no budget is left for the next pool: the client is told what the rows say.
func TestUnseenAnswerCostsNothing(t *testing.T) {
	small, mid, large := newInstance(t, "s", "mixed"), newInstance(t, "m", "mixed"), newInstance(t, "l", "mixed")
	small.model, small.weights, mid.model, mid.weights = "small", "small", "mid", "mid"
	model := layered(t, policy.Settings{Budget: &policy.Budget{PerDayNano: perDay, RightNano: worth}}, []string{"small", "mid", "big"}, .6, .8, .6)
	r := newRig(t, func(o *Options) { o.Models["auto"] = model }, small, mid, large)
	script := &smallScript{words: six, probs: []float64{-.001}, cut: 4}
	small.on(smallSays("small talk", -3))
	mid.on(func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		model.Cascade.Restore(spent(perDay)) // others have used up the budget meanwhile
		return script.serve(renamed{w}, r, body)
	})
	got := r.chat(t, askAuto)
	rows, w := r.newRows(t), weirAt(t, lastEvent(got))
	if said := text(t, got.body); said != "small talk" || w.Model != "small" || large.asked() != 0 {
		t.Errorf("%q by %+v", said, w)
	}
	if len(rows) != 2 || rows[0].Model != "mid" || rows[0].Outcome != tenants.OutcomeUpstreamError || rows[0].CostNanoUSD != 0 || int64(w.CostUSD) != rows[1].CostNanoUSD {
		t.Errorf("told %v, rows %+v", w.CostUSD, rows)
	}
}

// A request that has made its two attempts at pools that are judged goes past a
// pool without instances to the last one.
func TestPastAnAbsentPoolAfterTwoAreLost(t *testing.T) {
	var all []*instanceFake
	names := []string{"small", "mid", "more", "big"}
	for _, name := range names {
		f := newInstance(t, name, "mixed")
		f.model, f.weights = name, name
		all = append(all, f)
	}
	all[0].on(dies)
	all[1].on(dies)
	m := layered(t, policy.Settings{Value: &policy.Value{RightNano: worth}}, names, .6, .7, .8, .9)
	r := newRig(t, func(o *Options) { o.Models["auto"] = m }, all...)
	r.loses(t, all[2], true)
	got := r.chat(t, `{"model":"auto","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`)
	if w, rows := weirAt(t, got), r.newRows(t); got.status != 200 || w.Model != "big" || len(rows) != 3 {
		t.Errorf("%d %s, rows %v", got.status, got.body, outcomes(rows))
	}
}

// An instance whose breaker is half open comes back with its first good answer,
// also where the pool before it has no instance: to look for one is no trial.
func TestHalfOpenBehindAnAbsentPool(t *testing.T) {
	t.Parallel()
	r, small, large := cascadeRig(t, nil)
	r.loses(t, small, true)
	for range 3 {
		sel, _ := r.opts.Pool.Select(route.LeastInFlight{}, route.Arrival, pool.Ask{RequestView: route.RequestView{Model: "big"}}, 1)
		sel.Decode.Bad("500", false)
		sel.Release()
	}
	breaker := func() string {
		all := r.opts.Pool.Status()
		return all[slices.IndexFunc(all, func(s pool.Status) bool { return s.Name == large.name })].Breaker
	}
	await(t, "the end of the breaker's pause", func() bool { return breaker() == "half_open" })
	got := r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`)
	if w := weirAt(t, got); got.status != 200 || w.Model != "big" || w.Reason != cascade.ReasonEdgeUnavailable || breaker() != "closed" {
		t.Errorf("%d %s, breaker %s", got.status, got.body, breaker())
	}
}
