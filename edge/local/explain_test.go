package local_test

import (
	"encoding/json"
	"testing"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/edge/internal/embedtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
)

// The explanation comes with the answer where it is asked for, in all its
// forms; scores only for a key with the scope; and never unasked.
func TestExplainInTheAnswer(t *testing.T) {
	n := startStreaming(t, nil)
	explanation := func(a answer) (e struct {
		ID     string
		Judged bool
		Scores *struct {
			Policy     string
			Threshold  float64
			Candidates []struct{ Tier, Blocked string }
			Signals    *struct{ Tokens int }
		}
		Weir *struct{}
	}) {
		t.Helper()
		if a.weir.Explain == nil {
			return e
		}
		raw, err := json.Marshal(a.weir.Explain)
		if err == nil {
			err = json.Unmarshal(raw, &e)
		}
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for _, scope := range []bool{true, false} {
		s := n.cloud.DefaultSnapshot(n.roster.View().Snapshot().Version + 1)
		if !scope {
			s.Keys[0].Scopes = nil
		}
		n.cloud.SetSnapshot(t, s)
		n.poll()
		n.worker.Set(unsure)
		for _, extra := range []string{"", `,"stream":true`} {
			for _, mode := range []string{"auto", "edge-only", "cloud-only"} {
				a := n.chat(extra, "X-Weir-Explain", "1", "X-Weir-Mode", mode)
				e := explanation(a)
				if e.ID != a.header.Get("X-Request-Id") || e.Judged != (mode == "auto") || e.Weir != nil || (e.Scores != nil) != scope {
					t.Errorf("%s%s, scope %v: %+v", mode, extra, scope, e)
				}
				if scope && (len(e.Scores.Candidates) != 2 || (e.Scores.Signals != nil) != (mode != "cloud-only") ||
					mode == "edge-only" && e.Scores.Candidates[1].Blocked != "client_mode") {
					t.Errorf("%s%s: %+v", mode, extra, e.Scores)
				}
			}
			if a := n.chat(extra); a.weir.Explain != nil {
				t.Error("an explanation that nobody asked for")
			}
		}
	}
	if a := n.chat(`,"temperature":0,"weir":{"explain":true}`, "X-Weir-Mode", "cloud-only", "X-Weir-Privacy", "local-only"); a.status != 503 || explanation(a).ID == "" {
		t.Errorf("a refusal: %d %+v", a.status, a.weir)
	}
}

// What the node has told of a request while it remembered it, the log tells
// afterwards: the spans that were scored and not, and how the embedding went.
func TestTheLogExplainsAsTheNodeDid(t *testing.T) {
	log, server := &records{}, embedtest.Start(t)
	n := startNode(t, func(o *local.Options) {
		o.Decisions = log
		embedding(t, o, server)
	})
	n.worker.Set(workertest.Reply{Text: "<think> it is four </think> four", Logprob: -.001})
	type told struct {
		Scores struct {
			Embedding string
			Signals   struct {
				Usable bool
				Tokens int
				Think  int `json:"think_tokens"`
			}
		}
	}
	explain := func(id string) (e told) {
		t.Helper()
		if err := json.Unmarshal([]byte(n.get("/v1/weir/requests/"+id, 200)), &e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	a := n.about("lamp", 0)
	id := a.header.Get("X-Request-Id")
	eventually(t, "a record of the request", func() bool { log.mu.Lock(); defer log.mu.Unlock(); return len(log.got) == 1 })
	r := log.last()
	if r.Scored != cascade.ScoredAnswer || r.Spans == nil || r.Spans.Answer != 2 || r.Spans.Think != 5 || r.Embedding == "" {
		t.Errorf("record %+v, spans %+v", r, r.Spans)
	}
	r.Request = "0191d2a0-1234-7000-8000-00000000abcd" // which the node does not remember
	log.Log(r)
	if live, logged := explain(id), explain(r.Request); live != logged || live.Scores.Signals.Think != 5 {
		t.Errorf("the node told %+v, the log tells %+v", live, logged)
	}
	for _, request := range []string{id, r.Request} { // neither label hides the other
		learned, said := .75, 0.
		log.Log(journal.Record{Kind: journal.KindLabel, LabelKind: journal.LabelAgreement, Request: request, Edge: &learned, Propensity: .02})
		log.Log(journal.Record{Kind: journal.KindLabel, LabelKind: journal.LabelFeedback, Request: request, Edge: &said})
		var e struct{ Label, Feedback *journal.Record }
		if err := json.Unmarshal([]byte(n.get("/v1/weir/requests/"+request, 200)), &e); err != nil {
			t.Fatal(err)
		}
		if e.Label == nil || *e.Label.Edge != learned || e.Label.Propensity != .02 || e.Feedback == nil || *e.Feedback.Edge != said {
			t.Errorf("%s: label %+v, feedback %+v", request, e.Label, e.Feedback)
		}
	}
}
