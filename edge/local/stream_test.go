package local_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// startStreaming starts a node whose model has a window of four tokens.
func startStreaming(t testing.TB, change func(*local.Options)) *node {
	return startNode(t, func(o *local.Options) {
		cal := calibration()
		cal.Prefix = &cascade.Prefix{Tokens: 4, Bias: .5, Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}, PhiMean: 6, PhiSD: 1}
		o.Calibration = cal
		if change != nil {
			change(o)
		}
	})
}

// setHandoff puts a tenant's policy in force, and whether the cloud's models
// continue.
func (n *node) setHandoff(spec string, continues bool) {
	n.t.Helper()
	version := n.roster.View().Snapshot().Version + 1
	s := n.cloud.DefaultSnapshot(version)
	for i := range s.Models {
		s.Models[i].Continues = continues
	}
	s.Policies = []tenants.Policy{{TenantID: cloudtest.Tenant, Spec: json.RawMessage(spec)}}
	n.cloud.SetSnapshot(n.t, s)
	n.poll()
}

const eight = "w0 w1 w2 w3 w4 w5 w6 w7"

// on opens a gate when the client sees a line with a text.
func (n *node) on(text string) chan struct{} {
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	n.onLine = func(line string) {
		if strings.Contains(line, text) {
			open()
		}
	}
	return gate
}

// The text is shown as soon as the window is over and the answer good so far:
// the worker goes on only after the client has seen the beginning.
func TestStreamIsShownWhileItIsMade(t *testing.T) {
	n := startStreaming(t, nil)
	for _, mode := range []string{"auto", "edge-only", "prefer-edge"} {
		n.worker.Set(workertest.Reply{Text: eight, Logprob: -.001, Gate: n.on("w3"), GateAt: 6})
		a := n.chat(`,"stream":true`, "X-Weir-Mode", mode)
		want := map[string]string{"auto": "confident"}[mode]
		if want == "" {
			want = "client_mode"
		}
		if a.text != eight || !a.done || a.weir.Tier != "edge" || string(a.weir.Reason) != want || a.weir.Confidence == nil || a.weir.EdgeTokens != 9 {
			t.Errorf("%s: %q done %v, %+v", mode, a.text, a.done, a.weir)
		}
		if a.header.Get("X-Weir-Tier") != "edge" || a.header.Get("X-Weir-Model") != "hub-edge" {
			t.Errorf("%s: headers %v", mode, a.header)
		}
	}
	rows := n.rows.all()
	if len(rows) != 3 || rows[0].Outcome != tenants.OutcomeOK || rows[0].OutputTokens != 9 || rows[0].Reason != "confident" {
		t.Errorf("rows %+v", rows)
	}
}

// Doubt in the window is invisible, and ends the local generation: the worker
// waits for ever.
func TestRestartInTheWindow(t *testing.T) {
	n := startStreaming(t, nil)
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	for _, reply := range []workertest.Reply{
		{Text: eight, Logprob: -1, Gate: never, GateAt: 6},
		{Text: eight, Logprob: -.001, Unsure: 1, Gate: never, GateAt: 6},
		{Text: eight, NoProbs: true, Gate: never, GateAt: 6},
	} {
		n.worker.Set(reply)
		a := n.chat(`,"stream":true`)
		if a.text != "from the cloud" || !a.done || a.weir.Tier != "cloud" || a.weir.Attempts != 2 || a.weir.EdgeTokens == 0 {
			t.Errorf("%q done %v, %+v", a.text, a.done, a.weir)
		}
	}
	var body struct {
		Weir struct{ Draft struct{ Text string } }
	}
	if err := json.Unmarshal(n.cloud.Seen()[0].Body, &body); err != nil || !strings.HasPrefix(body.Weir.Draft.Text, "w0 ") {
		t.Errorf("draft %q, %v", body.Weir.Draft.Text, err)
	}
	rows := n.rows.all()
	if len(rows) != 3 || rows[0].Outcome != tenants.OutcomeEscalated || !strings.HasPrefix(rows[2].Reason, "signal_unusable") {
		t.Errorf("rows %+v", rows)
	}
}

// The cloud fails after an early doubt: the edge goes on and its answer stands.
func TestRestartWithoutACloud(t *testing.T) {
	n := startStreaming(t, nil)
	n.cloud.Answer(func(w http.ResponseWriter, _ *http.Request) { openai.Internal(nil).Write(w, nil) })
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -1})
	a := n.chat(`,"stream":true`)
	if a.text != eight || !a.done || a.weir.Tier != "edge" || a.weir.Reason != "cloud_error" || len(n.worker.Seen()) != 1 {
		t.Errorf("%q done %v, %+v", a.text, a.done, a.weir)
	}
}

// Doubt after text was shown: the edge finishes and says so, the cloud goes on,
// or it adds a part.
func TestLateDoubt(t *testing.T) {
	n := startStreaming(t, nil)
	late := workertest.Reply{Text: eight, Logprob: -.001, Unsure: 5}
	for _, tt := range []struct {
		name, spec   string
		continues    bool
		text         string
		tier, reason string
	}{
		{"finish", `{"name":"p"}`, true, eight, "edge", "low_confidence"},
		{"continue, not declared", `{"name":"p","handoff":"continue"}`, false, eight, "edge", "low_confidence"},
		{"continue", `{"name":"p","handoff":"continue"}`, true, "from the cloud", "cloud", "low_confidence"},
		{"append", `{"name":"p","handoff":"append"}`, false, eight + "\n\nfrom the cloud", "cloud", "low_confidence"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n.t = t
			n.setHandoff(tt.spec, tt.continues)
			n.worker.Set(late)
			before := len(n.cloud.Seen())
			a := n.chat(`,"stream":true,"max_tokens":200,"stream_options":{"include_usage":true}`)
			if !strings.HasSuffix(a.text, tt.text) || !a.done || string(a.weir.Tier) != tt.tier || string(a.weir.Reason) != tt.reason || a.weir.Confidence == nil {
				t.Errorf("%q done %v, %+v", a.text, a.done, a.weir)
			}
			checkOneStream(t, a)
			seen := n.cloud.Seen()[before:]
			if tt.tier == "edge" {
				if len(seen) != 0 {
					t.Error("the cloud was asked")
				}
				return
			}
			if len(seen) != 1 || a.weir.HandoffToken == 0 || a.weir.CloudTokens != 3 || a.model != "hub-cloud" {
				t.Errorf("asked %d times, %+v, model %s", len(seen), a.weir, a.model)
			}
			if tt.name == "continue" {
				checkContinues(t, seen[0].Body, strings.TrimSuffix(a.text, tt.text))
			}
		})
	}
}

// checkOneStream: one id and one time over all chunks, whoever speaks.
func checkOneStream(t *testing.T, a answer) {
	t.Helper()
	ids := map[string]bool{}
	for _, e := range a.events {
		var c struct {
			ID      string
			Created int64
		}
		if err := json.Unmarshal([]byte(e), &c); err != nil {
			t.Fatal(err)
		}
		ids[fmt.Sprint(c.ID, c.Created)] = true
	}
	if len(ids) != 1 {
		t.Errorf("ids %v", ids)
	}
}

// checkContinues: what was shown is the begun answer.
func checkContinues(t *testing.T, raw []byte, shown string) {
	t.Helper()
	var body struct {
		Messages []openai.Message
		Continue bool  `json:"continue_final_message"`
		Add      *bool `json:"add_generation_prompt"`
		Max      int   `json:"max_tokens"`
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		t.Fatal(err)
	}
	last := body.Messages[len(body.Messages)-1]
	if len(body.Messages) != 2 || last.Role != "assistant" || last.Content != shown || shown == "" || !strings.HasPrefix(eight, shown) {
		t.Errorf("messages %+v, shown %q", body.Messages, shown)
	}
	if !body.Continue || body.Add == nil || *body.Add || body.Max >= 200 || body.Max < 190 {
		t.Errorf("body %s", raw)
	}
}

// A cloud that fails to go on leaves the edge's answer; one that breaks off
// leaves a stream with an error at its end.
func TestContinueWithABrokenCloud(t *testing.T) {
	n := startStreaming(t, nil)
	n.setHandoff(`{"name":"p","handoff":"continue"}`, true)
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -.001, Unsure: 5})
	n.cloud.Answer(cloudFaults["500"])
	if a := n.chat(`,"stream":true`); a.text != eight || !a.done || a.weir.Tier != "edge" || a.weir.Reason != "cloud_error" {
		t.Errorf("500: %q done %v, %+v", a.text, a.done, a.weir)
	}
	n.cloud.Answer(cloudFaults["cut"])
	a := n.chat(`,"stream":true`)
	if shown, ok := strings.CutSuffix(a.text, "from "); !ok || !strings.HasPrefix(eight, shown) || a.done || a.errCode == "" || a.weir.Reason != "cloud_error" {
		t.Errorf("cut: %q done %v error %q, %+v", a.text, a.done, a.errCode, a.weir)
	}
}

// A worker that dies while its text is held is replaced unseen; after text was
// shown the stream ends with an error, or the cloud goes on.
func TestWorkerDies(t *testing.T) {
	n := startStreaming(t, nil)
	for _, tt := range []struct {
		name, spec string
		cut        int
		text       string
		done       bool
		tier       string
		reason     string
	}{
		{"held", `{"name":"p"}`, 2, "from the cloud", true, "cloud", "edge_unavailable"},
		{"shown", `{"name":"p"}`, 6, "w0 w1 w2 w3 w4 w5 ", false, "", "edge_unavailable"},
		{"shown, continue", `{"name":"p","handoff":"continue"}`, 6, "w0 w1 w2 w3 w4 w5 from the cloud", true, "cloud", "edge_unavailable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n.t = t
			n.setHandoff(tt.spec, true)
			n.worker.Set(workertest.Reply{Text: eight, Logprob: -.001, CutAt: tt.cut})
			before := len(n.rows.all())
			a := n.chat(`,"stream":true`)
			if a.text != tt.text || a.done != tt.done || (a.errCode != "") == tt.done || string(a.weir.Reason) != tt.reason || tt.tier != "" && string(a.weir.Tier) != tt.tier {
				t.Errorf("%q done %v error %q, %+v", a.text, a.done, a.errCode, a.weir)
			}
			if rows := n.rows.all(); len(rows) != before+1 || rows[before].Outcome != tenants.OutcomeUpstreamTruncated {
				t.Errorf("rows %+v", rows[before:])
			}
		})
	}
}

// Of an answer that is not streamed the client has seen nothing: the cloud
// answers in its place, whatever the hand-off.
func TestWorkerDiesUnstreamed(t *testing.T) {
	n := startStreaming(t, nil)
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -.001, CutAt: 2})
	for _, spec := range []string{`{"name":"p"}`, `{"name":"p","handoff":"continue"}`} {
		n.setHandoff(spec, true)
		a := n.chat("", "X-Weir-Mode", "prefer-edge")
		if a.status != http.StatusOK || a.text != "from the cloud" || a.weir.Reason != "edge_unavailable" || a.weir.HandoffToken != 0 {
			t.Errorf("%s: status %d %q, %+v", spec, a.status, a.text, a.weir)
		}
	}
}

// A stream of which only log-probabilities have left has begun all the same:
// the cloud goes on with it.
func TestWorkerDiesBeforeText(t *testing.T) {
	n := startStreaming(t, func(o *local.Options) {
		o.Generator = &middle{Generator: o.Generator, watch: func(_ context.Context, p *upstream.Progress, next upstream.Watch) error {
			p.Text = nil
			return next(p)
		}}
	})
	n.setHandoff(`{"name":"p","handoff":"continue"}`, true)
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -.001, CutAt: 1})
	a := n.chat(`,"stream":true,"logprobs":true`, "X-Weir-Mode", "prefer-edge")
	if a.text != "from the cloud" || !a.done || a.weir.Tier != "cloud" || a.weir.Reason != "edge_unavailable" {
		t.Errorf("%q done %v error %q, %+v", a.text, a.done, a.errCode, a.weir)
	}
	checkOneStream(t, a)
}

// A client that leaves while text is held, or while the cloud is asked, ends
// both, and leaves one row.
func TestClientLeavesWhileHeld(t *testing.T) {
	n := startStreaming(t, nil)
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -.001, Gate: never, GateAt: 2})
	n.abandonStream(func() bool { return len(n.worker.Seen()) == 1 })
	left := make(chan struct{}, 1)
	n.cloud.Answer(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		select {
		case left <- struct{}{}:
		default:
		}
	})
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -1, Gate: never, GateAt: 6})
	n.abandonStream(func() bool { return len(n.cloud.Seen()) == 1 })
	take(t, "the cloud's call ends", left)
	eventually(t, "two rows of cancelled attempts", func() bool {
		rows := n.rows.all()
		return len(rows) == 2 && rows[0].Outcome == tenants.OutcomeClientCancelled && rows[1].Outcome == tenants.OutcomeClientCancelled
	})
}

// Reasoning takes up nothing of the window: an answer that is unsure from its
// first word is let over, however sure the thoughts before it.
func TestReasoningBeforeTheWindow(t *testing.T) {
	tokens := 0
	n := startStreaming(t, func(o *local.Options) {
		o.Generator = &middle{Generator: o.Generator, watch: func(_ context.Context, p *upstream.Progress, next upstream.Watch) error {
			if tokens++; tokens <= 6 {
				p.Think, p.Text = true, nil
			}
			return next(p)
		}}
	})
	n.worker.Set(workertest.Reply{Text: eight + " w8 w9", Logprob: -.001, Unsure: 6})
	if a := n.chat(`,"stream":true`); a.text != "from the cloud" || !a.done || a.weir.Reason != "low_confidence" {
		t.Errorf("%q done %v, %+v", a.text, a.done, a.weir)
	}
}

// Without a window text is shown at once, and judged at its end.
func TestWindowOff(t *testing.T) {
	n := startStreaming(t, nil)
	n.setHandoff(`{"name":"p","window":{"tokens":0,"wait_ms":0}}`, false)
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -1, Gate: n.on("w0"), GateAt: 1})
	a := n.chat(`,"stream":true`)
	if a.text != eight || a.weir.Tier != "edge" || a.weir.Reason != "low_confidence" || len(n.cloud.Seen()) != 0 {
		t.Errorf("%q, %+v", a.text, a.weir)
	}
	// What is not streamed is judged whole all the same.
	n.worker.Set(unsure)
	if a := n.chat(""); a.weir.Tier != "cloud" {
		t.Errorf("%+v", a.weir)
	}
}

// A deadline that passes after text was shown ends the stream with an error.
func TestDeadlineInAStream(t *testing.T) {
	n := startStreaming(t, nil)
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	n.worker.Set(workertest.Reply{Text: eight, Logprob: -.001, Gate: never, GateAt: 6})
	a := n.chat(`,"stream":true`, "X-Weir-Deadline-Ms", "5000")
	if !strings.HasPrefix(eight, a.text) || a.done || a.errCode != "deadline_exceeded" || a.weir.Reason != "deadline" {
		t.Errorf("%q done %v error %q, %+v", a.text, a.done, a.errCode, a.weir)
	}
	eventually(t, "a row of the cut attempt", func() bool {
		rows := n.rows.all()
		return len(rows) == 1 && rows[0].Outcome == tenants.OutcomeDeadline && rows[0].OutputTokens <= 6
	})
}

// A client that stops reading the edge's own stream loses it, and frees the
// worker.
func TestClientThatDoesNotReadTheEdge(t *testing.T) {
	n := startStreaming(t, func(o *local.Options) { o.WriteTime = 50 * time.Millisecond })
	n.worker.Set(workertest.Reply{Text: strings.Repeat(strings.Repeat("x", 64<<10)+" ", 240), Logprob: -1e-6})
	conn, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4096) // so that less fits on the way
	body := `{"model":"hub-edge","stream":true,` + hello + `}`
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", n.cloud.Key.Reveal(), len(body), body)
	eventually(t, "a row of the cancelled attempt", func() bool {
		rows := n.rows.all()
		return len(rows) == 1 && rows[0].Outcome == tenants.OutcomeClientCancelled
	})
}
