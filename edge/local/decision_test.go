package local_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/tenants"
)

// records is a decision log in memory, as full as it is told to be.
type records struct {
	mu   sync.Mutex
	got  []journal.Record
	full bool
}

func (r *records) Log(rec journal.Record) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.full {
		r.got = append(r.got, rec)
	}
	return !r.full
}

func (r *records) Find(id string) (f journal.Found, ok bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range r.got {
		switch {
		case rec.Request != id:
		case rec.Kind == journal.KindDecision:
			f.Decision, ok = rec, true
		case rec.LabelKind == journal.LabelFeedback:
			f.Feedback = &rec
		default:
			f.Label = &rec
		}
	}
	return f, ok, nil
}

func (r *records) last() journal.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got[len(r.got)-1]
}

// setPolicy puts a policy into the tenant's snapshot.
func (n *node) setPolicy(version int64, p tenants.Policy) {
	n.t.Helper()
	s := n.cloud.DefaultSnapshot(version)
	p.TenantID = cloudtest.Tenant
	s.Policies = []tenants.Policy{p}
	s.Keys[0].Scopes = []string{"explain"}
	n.cloud.SetSnapshot(n.t, s)
	n.poll()
}

// Every request that was planned leaves one record that agrees with the answer;
// one refused before leaves none.
func TestDecisionsAreLogged(t *testing.T) {
	log := &records{}
	n := startNode(t, func(o *local.Options) { o.Decisions = log })
	for i, tt := range []struct {
		local         workertest.Reply
		mode, privacy string
		judged        bool
	}{
		{confident, "", "", true},
		{unsure, "", "", true},
		{unsure, "edge-only", "", false},
		{unsure, "", "local-only", false},
		{confident, "cloud-only", "", false},
		{workertest.Reply{Text: "x y", NoProbs: true}, "", "", true},
	} {
		n.worker.Set(tt.local)
		a := n.chat("", "X-Weir-Mode", tt.mode, "X-Weir-Privacy", tt.privacy)
		eventually(t, "a record of the request", func() bool { log.mu.Lock(); defer log.mu.Unlock(); return len(log.got) == i+1 })
		r := log.last()
		if r.Request != a.header.Get("X-Request-Id") || r.Tier != string(a.weir.Tier) || r.Reason != string(a.weir.Reason) ||
			r.Judged != tt.judged || r.Key != n.cloud.Key.ID || r.Private != (tt.privacy == "local-only") {
			t.Errorf("answer %+v, record %+v", a.weir, r)
		}
		if (r.Conf == nil) != (a.weir.Confidence == nil) || (r.Conf != nil && (*r.Conf != *a.weir.Confidence || len(r.Features) != 1)) {
			t.Errorf("answer %+v, record %+v", a.weir, r)
		}
	}
	n.send("/v1/chat/completions", `{"model":"nope",`+hello+`}`)
	if len(log.got) != 6 {
		t.Errorf("%d records", len(log.got))
	}
}

// A request that has left the memory is explained from the log.
func TestExplainFromTheLog(t *testing.T) {
	log := &records{}
	n := startNode(t, func(o *local.Options) { o.Decisions = log })
	n.setPolicy(2, tenants.Policy{})
	conf := .25
	const id = "0191d2a0-1234-7000-8000-00000000abcd"
	log.Log(journal.Record{Kind: journal.KindDecision, Request: id, Key: n.cloud.Key.ID, Cell: "batch", Judged: true, Policy: "rate",
		Tier: "cloud", Reason: "low_confidence", Conf: &conf, Gain: .7, Theta: .4})
	var e struct {
		Judged bool
		Weir   struct{ Tier, Reason string }
		Scores struct{ Gain, Theta, Confidence float64 }
	}
	if err := json.Unmarshal([]byte(n.get("/v1/weir/requests/"+id, 200)), &e); err != nil {
		t.Fatal(err)
	}
	if !e.Judged || e.Weir.Tier != "cloud" || e.Weir.Reason != "low_confidence" || e.Scores.Gain != .7 || e.Scores.Theta != .4 || e.Scores.Confidence != .25 {
		t.Errorf("%+v", e)
	}
	n.get("/v1/weir/requests/0191d2a0-1234-7000-8000-00000000abce", 404)
	s := n.cloud.DefaultSnapshot(3)
	s.Keys[0].Scopes = nil
	n.cloud.SetSnapshot(t, s)
	n.poll()
	if raw := n.get("/v1/weir/requests/"+id, 200); strings.Contains(raw, "scores") {
		t.Errorf("scores without the scope: %s", raw)
	}
}

// A full log costs a request nothing but its record.
func TestAFullLogIsCounted(t *testing.T) {
	n := startNode(t, func(o *local.Options) { o.Decisions = &records{full: true} })
	n.worker.Set(confident)
	if a := n.chat(""); a.status != http.StatusOK || a.weir.Reason != "confident" {
		t.Errorf("%d %+v", a.status, a.weir)
	}
}

// The tenant's settings decide: a rate is held though every answer is as sure
// as the other, refused settings change nothing, privacy is the tenant's too.
func TestSettingsOfTheTenant(t *testing.T) {
	n := startNode(t, nil)
	n.setPolicy(2, tenants.Policy{Spec: json.RawMessage(`{"name":"fifth","rate":0.2}`)})
	n.worker.Set(confident)
	ask := func(requests int) (cloud int) {
		for range requests {
			a := n.chat("")
			if a.header.Get("X-Weir-Policy") != "fifth" {
				t.Fatalf("policy %q", a.header.Get("X-Weir-Policy"))
			}
			if a.weir.Tier == "cloud" {
				cloud++
			}
		}
		return cloud
	}
	ask(40) // the tracker finds its threshold
	if got := ask(50); got < 8 || got > 12 {
		t.Errorf("%d of 50 escalated, want about 10", got)
	}
	n.setPolicy(3, tenants.Policy{Spec: json.RawMessage(`{"name":"fifth","rate":2}`)})
	if got := ask(50); got < 8 || got > 12 {
		t.Errorf("%d of 50 escalated after refused settings, want about 10", got)
	}
	n.setPolicy(4, tenants.Policy{Spec: json.RawMessage(`{"name":"home","privacy":"local-only"}`)})
	n.worker.Set(unsure)
	before := len(n.cloud.Seen())
	if a := n.chat(""); a.weir.Tier != "edge" || a.weir.Reason != "local_only" {
		t.Errorf("privacy of the tenant: %+v", a.weir)
	}
	if len(n.cloud.Seen()) != before {
		t.Error("a local-only request reached the cloud")
	}
}

// A budget that is used up keeps answers at the edge and says so.
func TestBudgetOfTheTenant(t *testing.T) {
	n := startNode(t, nil)
	n.worker.Set(unsure)
	n.setPolicy(2, tenants.Policy{Spec: json.RawMessage(`{"budget":{"per_day_nano":1,"right_nano":1000000000000}}`)})
	if a := n.chat(""); a.weir.Tier != "cloud" { // no price is known: the first call shows what it costs
		t.Errorf("%+v", a.weir)
	}
	if a := n.chat(""); a.weir.Tier != "edge" || a.weir.Reason != "budget" {
		t.Errorf("%+v", a.weir)
	}
	if a := n.chat("", "X-Weir-Mode", "cloud-only"); a.status != http.StatusTooManyRequests {
		t.Errorf("cloud-only beyond the budget: %d", a.status)
	}
}
