package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/internal/contract"
)

func (n *notes) Score(_ context.Context, s Score) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err == nil {
		n.scores = append(n.scores, s)
	}
	return n.err
}

// Answers of equal pools are noted before their last byte, with what is needed to
// score them, and those that break their form as broken.
func TestAnswersAreNoted(t *testing.T) {
	kept := &notes{}
	r, _, a, b := chooseRig(t, func(o *Options) { o.Feedback, o.Models["plain"] = kept, Model{Pool: "a"} })
	for _, more := range []string{"", `,"stream":true`} {
		for _, model := range []string{"any", "auto"} {
			got := r.chat(t, askOf(model, more))
			w, n := weirAt(t, endOf(got)), kept.last()
			if n.Operation != got.header.Get(contract.HeaderRequestID) || n.TenantID != tenantA || n.Model != model || n.Class != "gold" || n.Pool != w.Model || n.Propensity != .5 || n.Checked || n.Broken {
				t.Errorf("%s%s: %+v", model, more, n)
			}
		}
		form := `,"response_format":{"type":"json_object"}` + more
		if r.chat(t, askOf("any", form)); !kept.last().Broken || !kept.last().Checked {
			t.Errorf("a broken form: %+v", kept.last())
		}
		whole, words := smallSays(`{}`, -.1), []string{"{", "}"}
		a.on(whole)
		b.on(whole)
		if strings.Contains(more, "stream") {
			a.on(nil)
			b.on(nil)
			a.words, b.words = words, words
		}
		if r.chat(t, askOf("any", form)); kept.last().Broken || !kept.last().Checked {
			t.Errorf("a whole form: %+v", kept.last())
		}
		a.on(nil)
		b.on(nil)
	}
	if r.chat(t, askOf("plain", "")); kept.last().Model != "" || kept.last().Pool != "a" || kept.last().Propensity != 0 {
		t.Errorf("an equal pool by its own name: %+v", kept.last())
	}
	a.on(dies)
	b.on(dies)
	before := len(kept.answers)
	if r.chat(t, askOf("any", "")); len(kept.answers) != before {
		t.Errorf("a failure is noted: %+v", kept.last())
	}
}

// The pool of a score is the pool's name, whatever its instances call their model.
// The ledger has the latter, and its word is not enough for answers of equal pools.
func TestFeedbackNamesPools(t *testing.T) {
	kept := &notes{}
	instances := []*instanceFake{newInstance(t, "p", "mixed"), newInstance(t, "a", "mixed"), newInstance(t, "b", "mixed")}
	for _, in := range instances {
		in.pool, in.model = "pool-"+in.name, "served"
	}
	anyOf, err := cascading.New(cascading.Options{Tiers: []cascading.Tier{{Pool: "pool-a"}, {Pool: "pool-b"}}, Equals: 2})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(o *Options) {
		o.Feedback, o.Models = kept, map[string]Model{"plain": {Pool: "pool-p"}, "any": {Pool: "pool-a", Cascade: anyOf}}
	}, instances...)
	got := r.chat(t, askOf("plain", ""))
	if r.explained(t, got, r.key); weirAt(t, got).Model != "served" {
		t.Fatalf("%s", got.body)
	}
	if x := r.do(t, http.MethodPut, "/v1/weir/requests/"+got.header.Get(contract.HeaderRequestID)+"/feedback", r.key, `{"score":1}`); x.status != http.StatusOK {
		t.Fatalf("%d %s", x.status, x.body)
	}
	s := kept.scores[0]
	if s.Known == nil || s.Known.Pool != "pool-p" {
		t.Errorf("%+v", s.Known)
	}
	slices.Sort(s.Noted)
	if want := []string{"pool-a", "pool-b", "served", "served"}; !slices.Equal(s.Noted, want) {
		t.Errorf("%q, want %q", s.Noted, want)
	}
}

// A score goes to the keeper with the caller's own tenant, and what the gateway
// remembers of an answer of a plain model.
func TestFeedback(t *testing.T) {
	kept := &notes{}
	r := newRig(t, func(o *Options) { o.Feedback = kept }, newInstance(t, "m", "mixed"))
	got := r.chat(t, ask1)
	r.explained(t, got, r.key)
	path := "/v1/weir/requests/" + got.header.Get(contract.HeaderRequestID) + "/feedback"
	put := func(path, key, body string) reply { return r.do(t, http.MethodPut, path, key, body) }
	if x := put(path, r.key, `{"score":0.25}`); x.status != 200 || x.body != `{"score":0.25}` {
		t.Errorf("%d %s", x.status, x.body)
	}
	s := kept.scores[0]
	if s.Value != .25 || s.TenantID != tenantA || s.Device != "" || s.Known == nil || s.Known.Pool != "big" || s.Known.Model != "" || s.Known.Class != "gold" {
		t.Errorf("%+v, %+v", s, s.Known)
	}
	if put(path, r.other, `{"score":1}`); kept.scores[1].TenantID != tenantB || kept.scores[1].Known != nil {
		t.Errorf("another tenant's: %+v", kept.scores[1])
	}
	old, never := "0190c9a4-7f7e-7000-8000-00000000000a", "01ffffff-ffff-7000-8000-00000000000a"
	for _, tt := range []struct {
		path, key, body, code string
		status                int
		err                   error
	}{
		{path, "", `{"score":1}`, "invalid_api_key", 401, nil},
		{path, r.key, `{"score":2}`, "invalid_value", 400, nil},
		{path, r.key, `{"score":1,"why":"x"}`, "unknown_parameter", 400, nil},
		{path, r.key, `{"score":1` + strings.Repeat(" ", 5000) + `}`, "request_too_large", 413, nil},
		{"/v1/weir/requests/" + old + "/feedback", r.key, `{"score":1}`, "feedback_too_late", 410, nil},
		{"/v1/weir/requests/" + never + "/feedback", r.key, `{"score":1}`, "request_not_found", 404, nil},
		{"/v1/weir/requests/x/feedback", r.key, `{"score":1}`, "request_not_found", 404, nil},
		{path, r.key, `{"score":1}`, "request_not_found", 404, ErrUnknownAnswer},
		{path, r.key, `{"score":1}`, "feedback_unavailable", 503, errors.New("away")},
	} {
		kept.err = tt.err
		if x := put(tt.path, tt.key, tt.body); x.status != tt.status || (tt.status != 401 && !strings.Contains(x.body, `"`+tt.code+`"`)) {
			t.Errorf("%s %.40s: %d %s", tt.path, tt.body, x.status, x.body)
		}
	}
	kept.err = nil
	for pace, later := allowanceOf(&r.scores, tenantA, scoresPerSecond, mostScores), time.Now().Add(time.Hour); pace.Spend(later); {
	}
	if x := put(path, r.key, `{"score":1}`); x.status != http.StatusTooManyRequests || x.header.Get("Retry-After") == "" {
		t.Errorf("beyond the pace: %d %s", x.status, x.body)
	}
	if x := put(path, r.other, `{"score":1}`); x.status != http.StatusOK {
		t.Errorf("another tenant's: %d %s", x.status, x.body)
	}
}
