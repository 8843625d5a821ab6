package worker_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/engine/worker/state"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/prefix"
)

// follow reads a worker's state until the test or the stream ends.
func (r *running) follow(t testing.TB) <-chan state.Message {
	t.Helper()
	resp, err := http.Get(r.url + "/instance/v1/state")
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Fatalf("status %d, %v", resp.StatusCode, resp.Header)
	}
	out := make(chan state.Message, 1000)
	left, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer close(out)
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var m state.Message
			if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
				t.Errorf("%v: %s", err, lines.Bytes())
			}
			select {
			case out <- m:
			case <-left:
				return
			}
		}
	}()
	t.Cleanup(func() { close(left); resp.Body.Close(); <-done })
	return out
}

// until reads messages to the first that is ok.
func until(t testing.TB, in <-chan state.Message, what string, ok func(state.Message) bool) state.Message {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case m, more := <-in:
			if !more {
				t.Fatalf("%s: the stream ended", what)
			}
			if ok(m) {
				return m
			}
		case <-limit:
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// keysOf are the keys that a gateway finds in a request.
func keysOf(t testing.TB, r *running, salt string, b body) []string {
	t.Helper()
	raw, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, k := range prefix.Append(nil, r.Info.Fingerprint.String(), salt, m) {
		out = append(out, k.String())
	}
	return out
}

func TestState(t *testing.T) {
	g := startGated(t, worker.Config{Role: "mixed", PrefixCache: "on"})
	in := g.follow(t)
	m := until(t, in, "first message", func(state.Message) bool { return true })
	if !m.Full || m.Seq != 1 || m.Name != "mixed-"+strings.Split(g.Addr.String(), ":")[1] || m.Epoch != g.Epoch || m.Role != "mixed" || m.Health != "ok" ||
		m.Model != "toy" || m.Fingerprint == nil || m.KVBlocksTotal == 0 || m.MaxSeqs != 8 || len(m.Requests) != 0 {
		t.Errorf("first message %+v", m)
	}
	b := with(chat("toy", strings.Repeat("a long question ", 20)), "max_tokens", 6)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		g.ask(t, "op-1", b)
	}()
	m = until(t, in, "the request is in flight", func(m state.Message) bool { return len(m.Requests) == 1 })
	if q := m.Requests[0]; q.Operation != "op-1" || q.PromptTokens < 300 || q.Phase == state.Decode {
		t.Errorf("%+v", q)
	}
	g.gate <- struct{}{} // the prompt needs more than one step
	until(t, in, "its prompt is computed", func(m state.Message) bool { return m.PrefillTokensWaiting > 0 && m.Running == 1 && m.KVBlocksUsed > 0 })
	for done := false; !done; {
		select {
		case g.gate <- struct{}{}:
		case <-answered:
			done = true
		}
	}
	want := keysOf(t, g.running, "", b)
	known := map[string]bool{}
	m = until(t, in, "it has ended", func(m state.Message) bool {
		for _, k := range m.KeysAdded {
			known[k] = true
		}
		return len(m.Requests) == 0 && m.CachedBlocks > 0 && m.Running == 0
	})
	for _, k := range want {
		if !known[k] {
			t.Errorf("key %s is not known", k)
		}
	}
	if len(want) < 4 || len(known) != len(want) || m.StepMS <= 0 || m.PrefixQueries == 0 {
		t.Errorf("%d keys, want %d; %+v", len(known), len(want), m)
	}
	until(t, in, "silence is no silence", func(m state.Message) bool { return len(m.Requests) == 0 })
}

func TestRoleAndDrain(t *testing.T) {
	r := start(t, worker.Config{Role: "mixed"}, toy(runnertest.Options{}))
	in := r.follow(t)
	for _, bad := range []body{{}, {"role": "king"}, {"role": 5}, {"role": "decode", "rolle": "prefill"}} {
		if status, _ := r.post(t, "/instance/v1/role", bad); status != 400 {
			t.Errorf("%v: status %d", bad, status)
		}
	}
	if status, a := r.post(t, "/instance/v1/role", body{"role": "prefill"}); status != 200 || a["role"] != "prefill" {
		t.Errorf("%d, %v", status, a)
	}
	until(t, in, "the new role", func(m state.Message) bool { return m.Role == "prefill" })
	if status, a := r.post(t, "/instance/v1/drain", body{"draining": true}); status != 200 || a["draining"] != true {
		t.Errorf("%d, %v", status, a)
	}
	until(t, in, "draining", func(m state.Message) bool { return m.Health == "draining" })
	if status, a := r.ask(t, "", chat("toy", "hi")); status != 503 || a["error"].(map[string]any)["code"] != "worker_draining" {
		t.Errorf("a drained worker answers %d, %v", status, a)
	}
	if status, _ := r.post(t, "/instance/v1/drain", body{"draining": false}); status != 200 {
		t.Errorf("status %d", status)
	}
	if status, _ := r.ask(t, "", chat("toy", "hi")); status != 200 {
		t.Errorf("after the drain: status %d", status)
	}
	if status, _ := r.post(t, "/instance/v1/drain", body{"drainig": false}); status != 400 {
		t.Errorf("a slip: status %d", status)
	}
	if status, _ := r.post(t, "/instance/v1/drain", body{"draining": strings.Repeat("x", 5000)}); status != 400 {
		t.Errorf("a long body: status %d", status)
	}
}

// TestCachedTokens: usage tells what was cached, within one salt, and the answer
// is the same.
func TestCachedTokens(t *testing.T) {
	r := start(t, worker.Config{Role: "mixed", PrefixCache: "on"}, toy(runnertest.Options{}))
	plain := start(t, worker.Config{Role: "mixed", PrefixCache: "off"}, toy(runnertest.Options{}))
	b := chat("toy", strings.Repeat("a long question ", 10))
	_, want := plain.ask(t, "", b)
	if again, _ := plain.ask(t, "", b); again != 200 || plain.metric(t, "vllm:prefix_cache_queries_total", "") != 0 {
		t.Error("a cache that is off is asked")
	}
	for i, tt := range []struct {
		salt string
		hit  bool
	}{{"", false}, {"", true}, {"s", false}, {"s", true}, {"", true}} {
		status, a := r.send(t, "/v1/chat/completions", b, "X-Weir-Cache-Salt", tt.salt)
		usage := a["usage"].(map[string]any)
		cached := usage["prompt_tokens_details"].(map[string]any)["cached_tokens"].(float64)
		most := usage["prompt_tokens"].(float64) - 1
		if status != 200 || tt.hit && cached != most || !tt.hit && cached != 0 || a.text() != want.text() {
			t.Errorf("request %d: %v of %v cached, %q", i, cached, most, a.text())
		}
	}
	if hits, asked := r.metric(t, "vllm:prefix_cache_hits_total", ""), r.metric(t, "vllm:prefix_cache_queries_total", ""); hits <= 0 || asked <= hits {
		t.Errorf("%v of %v tokens hit", hits, asked)
	}
}

// TestInnerMembers: what a gateway may say wrongly.
func TestInnerMembers(t *testing.T) {
	r := start(t, worker.Config{Role: "mixed"}, toy(runnertest.Options{Context: 128}))
	good := with(chat("toy", "hi"), "max_tokens", 3)
	for _, tt := range []struct {
		member string
		value  any
	}{
		{"priority", "high"}, {"priority", 1.5}, {"return_token_ids", 1}, {"weir_resume", 5}, {"weir_resume", body{"tokens": []any{-1}}},
		{"weir_resume", body{"tokens": []any{259}}}, {"weir_resume", body{"tokens": []any{2}}}, {"weir_resume", body{"text": "x", "tokens": []any{40}}},
		{"weir_resume", body{"text": strings.Repeat("x", 200)}},
	} {
		if status, a := r.ask(t, "", with(good, tt.member, tt.value)); status != 400 || a.param() != tt.member {
			t.Errorf("%s = %.60v: %d, %v", tt.member, tt.value, status, a)
		}
	}
	if status, a := r.ask(t, "", with(with(good, "stop", "b"), "weir_resume", body{"text": "abc"})); status != 400 || a.param() != "weir_resume" {
		t.Errorf("resumed after its stop: %d, %v", status, a)
	}
	for header, value := range map[string]string{"X-Weir-Slo-Ttft-Ms": "soon", "X-Weir-Cache-Salt": strings.Repeat("s", 300)} {
		if status, a := r.send(t, "/v1/chat/completions", good, header, value); status != 400 || a.param() != header {
			t.Errorf("%s: %d, %v", header, status, a)
		}
	}
	if status, _ := r.send(t, "/v1/chat/completions", with(good, "priority", -99999), "X-Weir-Slo-Ttft-Ms", "250"); status != 200 {
		t.Errorf("priority and TTFT: %d", status)
	}
}

// TestRestart: a runner that panics is loaded anew under another epoch, what was
// asked of it fails, and what comes later is answered.
func TestRestart(t *testing.T) {
	var crash atomic.Bool
	issue := certificates(t)
	r := start(t, issue(worker.Config{Role: "mixed", PrefixCache: "on"}, "w", pki.RoleWorker), toy(runnertest.Options{BeforeStep: func([]engine.Span) error {
		if crash.CompareAndSwap(true, false) {
			panic("made to")
		}
		return nil
	}}))
	_, want := r.ask(t, "", chat("toy", "hi"))
	in := r.follow(t)
	crash.Store(true)
	if status, _ := r.ask(t, "", chat("toy", "hi")); status != 500 {
		t.Errorf("status %d", status)
	}
	for limit, open := time.After(time.Minute), true; open; {
		select {
		case _, open = <-in:
		case <-limit:
			t.Fatal("the old board's stream does not end")
		}
	}
	eventually(t, "it answers again", func() bool {
		status, a := r.ask(t, "", chat("toy", "hi"))
		return status == 200 && a.text() == want.text()
	})
	m := until(t, r.follow(t), "state", func(state.Message) bool { return true })
	if m.Epoch == r.Epoch || !m.Full {
		t.Errorf("epoch %s, before %s", m.Epoch, r.Epoch)
	}
	b := chat("toy", "hand me over")
	p := pools{mixed: r, prefill: r, decode: start(t, issue(worker.Config{Role: "decode"}, "d", pki.RoleWorker), toy(runnertest.Options{}))}
	if _, want := r.ask(t, "", b); p.both(t, "op", b).text() != want.text() {
		t.Error("hand-offs do not work after a restart")
	}
	if p.decode.metric(t, "weir:pd_fallback_total", "") != 0 {
		t.Error("the hand-off fell back")
	}
}

// TestGivesUp: a runner that cannot live ends the worker, which has said before
// that it is about to fail.
func TestGivesUp(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the pauses between restarts")
	}
	ready := make(chan worker.Ready, 10)
	done := make(chan error, 1)
	go func() {
		done <- worker.Run(t.Context(), worker.Options{Config: worker.Config{Listen: "127.0.0.1:0", Role: "mixed"}, Log: logger(t),
			Load:    toy(runnertest.Options{BeforeStep: func([]engine.Span) error { panic("always") }}),
			OnReady: func(r worker.Ready) { ready <- r }})
	}()
	var epochs []string
	for {
		select {
		case r := <-ready:
			epochs = append(epochs, r.Epoch)
			w := &running{Ready: r, url: "http://" + r.Addr.String()}
			if len(epochs) == 4 {
				eventually(t, "it says that it is about to fail", func() bool { return strings.Contains(w.state(t).Failing, "lost 3 times") })
			}
			w.ask(t, "", chat("toy", "hi"))
		case err := <-done:
			slices.Sort(epochs)
			if err == nil || !strings.Contains(err.Error(), "gave up") || len(slices.Compact(epochs)) != 5 {
				t.Errorf("%v after epochs %v", err, epochs)
			}
			return
		case <-time.After(60 * time.Second):
			t.Fatal("still trying")
		}
	}
}
