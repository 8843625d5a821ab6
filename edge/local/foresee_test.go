package local_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
)

// A session that was let over stays in the cloud until it has been idle too
// long; other sessions, other keys and private requests do not.
func TestStickySessions(t *testing.T) {
	clock := newClock()
	n := startStreaming(t, func(o *local.Options) { o.Now = clock.now })
	n.setHandoff(`{"name":"p","sticky":true}`, false)
	n.worker.Set(unsure)
	if a := n.chat("", "X-Weir-Session", "s"); a.weir.Reason != "low_confidence" {
		t.Fatalf("first turn: %+v", a.weir)
	}
	n.worker.Set(confident)
	for _, tt := range []struct{ session, privacy, mode, reason string }{
		{"s", "", "", "session_sticky"}, {"s", "", "", "session_sticky"}, {"other", "", "", "confident"}, {"", "", "", "confident"},
		{"s", "local-only", "", "local_only"}, {"s", "", "edge-only", "client_mode"}, {"s", "", "", "session_sticky"},
	} {
		edge := len(n.worker.Seen())
		a := n.chat("", "X-Weir-Session", tt.session, "X-Weir-Privacy", tt.privacy, "X-Weir-Mode", tt.mode)
		if string(a.weir.Reason) != tt.reason {
			t.Errorf("%+v: %+v", tt, a.weir)
		}
		if asked := len(n.worker.Seen()) > edge; asked == (tt.reason == "session_sticky") {
			t.Errorf("%+v: edge asked %v", tt, asked)
		}
	}
	clock.add(time.Hour)
	if a := n.chat("", "X-Weir-Session", "s"); a.weir.Reason != "confident" {
		t.Errorf("after an hour: %+v", a.weir)
	}
	n.setHandoff(`{"name":"p"}`, false)
	n.worker.Set(unsure)
	n.chat("", "X-Weir-Session", "t")
	n.worker.Set(confident)
	if a := n.chat("", "X-Weir-Session", "t"); a.weir.Reason != "confident" {
		t.Errorf("without the setting: %+v", a.weir)
	}
}

// clock is the node's, moved by the test.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Now()} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// teach lets the node see that answers about rivers are let over and others
// kept, and how long, by its clock, each tier takes.
func (n *node) teach(c *clock, edge, cloud time.Duration) {
	n.t.Helper()
	n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) { c.add(cloud); cloudtest.Say("from the cloud")(w, r) })
	for i := range 240 {
		word, reply := "lamp", confident
		if i%2 == 0 {
			word, reply = "river", unsure
		}
		reply.Before = func() { c.add(edge) }
		n.worker.Set(reply)
		n.about(word, i)
	}
}

func (n *node) about(word string, i int, headers ...string) answer {
	n.t.Helper()
	return n.send("/v1/chat/completions", fmt.Sprintf(`{"model":"auto","messages":[{"role":"user","content":"tell me of the %s %d"}]}`, word, i), headers...)
}

// Prompts whose answers were let over skip the edge, others do not; now and
// then one is asked of it all the same.
func TestSkipEdge(t *testing.T) {
	clock := newClock()
	n := startStreaming(t, func(o *local.Options) { o.Now = clock.now })
	n.setHandoff(`{"name":"p","skip_edge":true}`, false)
	n.teach(clock, 3*time.Second, 8*time.Second)
	n.worker.Set(confident)
	for i := range 20 {
		if a := n.about("lamp", i); a.weir.Tier != "edge" {
			t.Errorf("an easy prompt: %+v", a.weir)
		}
	}
	slow := unsure
	slow.Before = func() { clock.add(3 * time.Second) }
	n.worker.Set(slow)
	reasons := map[string]int{}
	for i := range 300 {
		reasons[string(n.about("river", i).weir.Reason)]++
	}
	if reasons["predicted_hard"] < 240 || reasons["low_confidence"] == 0 || len(reasons) != 2 {
		t.Errorf("hard prompts: %v", reasons)
	}
	if a := n.about("river", 1, "X-Weir-Privacy", "local-only"); a.weir.Reason != "local_only" {
		t.Errorf("a local-only request: %+v", a.weir)
	}
}

// Where an escalation is likely and the deadline tight both tiers are asked;
// one answer is shown and the other's request ended.
func TestHedge(t *testing.T) {
	clock := newClock()
	n := startStreaming(t, func(o *local.Options) { o.Now = clock.now })
	n.setHandoff(`{"name":"p","hedge":true}`, false)
	n.teach(clock, 15*time.Second, 8*time.Second)
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	for _, stream := range []string{"", `,"stream":true`} {
		rows := len(n.rows.all())
		asksEdge := make(chan struct{})
		n.worker.Set(workertest.Reply{Text: eight, Logprob: -.001, Gate: never, GateAt: 2, // the edge hangs
			Before: sync.OnceFunc(func() { close(asksEdge) })})
		n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-asksEdge:
				cloudtest.Say("from the cloud")(w, r)
			case <-r.Context().Done():
			}
		})
		a := n.chatAbout("river", stream)
		if a.text != "from the cloud" || a.weir.Reason != "hedge_won" || a.weir.Tier != "cloud" || a.weir.Attempts != 2 {
			t.Errorf("the cloud is faster%s: %q %+v", stream, a.text, a.weir)
		}
		eventually(t, "the edge's row", func() bool { return len(n.rows.all()) == rows+1 })
		if r := n.rows.all()[rows]; r.Outcome != tenants.OutcomeEscalated {
			t.Errorf("row %+v", r)
		}
		left, gate := make(chan struct{}), make(chan struct{})
		asked, ended := sync.OnceFunc(func() { close(gate) }), sync.OnceFunc(func() { close(left) })
		n.cloud.Answer(func(_ http.ResponseWriter, r *http.Request) { // the cloud hangs
			asked()
			<-r.Context().Done()
			ended()
		})
		sure := confident
		sure.Gate = gate
		n.worker.Set(sure)
		a = n.chatAbout("river", stream)
		if a.text != "from the edge" || a.weir.Reason != "confident" || a.weir.Attempts != 2 {
			t.Errorf("the edge is faster%s: %q %+v", stream, a.text, a.weir)
		}
		take(t, "the cloud's call ends", left)
		n.worker.Set(confident)
		n.cloud.Answer(cloudFaults["500"])
		if a = n.chatAbout("river", stream); a.text != "from the edge" || a.weir.Reason != "confident" {
			t.Errorf("the cloud fails%s: %q %+v", stream, a.text, a.weir)
		}
	}
	a := n.chatAbout("lamp", "")
	if _, asked := n.arrivals(a.header.Get(contract.HeaderRequestID)); a.weir.Reason != "confident" || a.weir.Attempts != 1 || asked != 0 {
		t.Errorf("an easy prompt: %+v", a.weir)
	}
}

func (n *node) chatAbout(word, extra string) answer {
	n.t.Helper()
	return n.send("/v1/chat/completions", `{"model":"auto","messages":[{"role":"user","content":"tell me of the `+word+` 0"}]`+extra+`}`, "X-Weir-Deadline-Ms", "20000")
}
