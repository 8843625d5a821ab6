package worker_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/models/heldout"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/sse"
)

// part is a stream as far as it came.
type part struct {
	text   string
	tokens []any // token_ids
	role   bool
	finish string
	moved  map[string]any // weir_migrated
	usage  map[string]any
}

// read follows a stream until stop says so, or to its end.
func (r *running) read(t testing.TB, operation string, b body, stop func(*part) bool) *part {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	raw, err := json.Marshal(with(with(b, "stream", true), "return_token_ids", true))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/chat/completions", strings.NewReader(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Weir-Operation", operation)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		status, a := decode(t, resp)
		t.Fatalf("status %d, %v", status, a)
	}
	p := &part{}
	events := sse.NewReader(resp.Body)
	for {
		e, err := events.Next()
		if err != nil {
			return p
		}
		var c body
		if json.Unmarshal(e, &c) != nil { // [DONE]
			return p
		}
		p.add(c)
		if stop(p) {
			return p
		}
	}
}

func (p *part) add(c body) {
	if m, ok := c["weir_migrated"].(map[string]any); ok {
		p.moved = m
	}
	if u, ok := c["usage"].(map[string]any); ok {
		p.usage = u
	}
	choices, _ := c["choices"].([]any)
	if len(choices) == 0 {
		return
	}
	one := choices[0].(map[string]any)
	delta := one["delta"].(map[string]any)
	text, _ := delta["content"].(string)
	p.text += text
	p.role = p.role || delta["role"] != nil
	ids, _ := one["token_ids"].([]any)
	p.tokens = append(p.tokens, ids...)
	if f, ok := one["finish_reason"].(string); ok {
		p.finish = f
	}
}

func toEnd(*part) bool { return false }

// TestResume: a gateway goes on elsewhere with what it has shown, with the tokens
// and without.
func TestResume(t *testing.T) {
	dying := start(t, worker.Config{Role: "mixed"}, toy(runnertest.Options{Endless: true}))
	heir := start(t, worker.Config{Role: "mixed", PrefixCache: "on"}, toy(runnertest.Options{Endless: true}))
	for _, sampled := range []float64{0, 1.2} {
		b := with(with(with(chat("toy", "go on"), "max_tokens", 200), "temperature", sampled), "seed", 11)
		want := dying.read(t, "", b, toEnd)
		first := dying.read(t, "", with(b, "max_tokens", 20), toEnd)
		for name, resume := range map[string]body{
			"text and tokens": {"text": first.text, "tokens": first.tokens},
			"text":            {"text": first.text},
		} {
			rest := with(with(b, "weir_resume", resume), "max_tokens", 200-len(first.tokens))
			got := heir.read(t, "", with(rest, "stream_options", body{"include_usage": true}), toEnd)
			if first.text+got.text != want.text || got.role || got.finish != "length" {
				t.Errorf("%s at temperature %v: %q + %q, role %v, %s; want %q", name, sampled, first.text, got.text, got.role, got.finish, want.text)
			}
			if got.usage["completion_tokens"] != float64(200-len(first.tokens)) || got.usage["prompt_tokens"].(float64) > 40 {
				t.Errorf("%s: usage %v", name, got.usage)
			}
		}
	}
}

// destination is the decode worker as an order names it.
func (p *pools) destination() body {
	at := p.decode.Addr.(*net.TCPAddr)
	return body{"name": "heir", "host": at.IP.String(), "port": at.Port}
}

// migrates runs b on one worker, moves it after some tokens, and compares with
// an answer that was left alone. ordered is told when the worker has done what
// the order says. It returns how long no token came.
func migrates(t *testing.T, p *pools, b body, after int, order body, ordered func(status int)) time.Duration {
	t.Helper()
	want := p.mixed.read(t, "", b, toEnd)
	var asked sync.WaitGroup
	defer asked.Wait()
	begun := false
	first := p.prefill.read(t, "op", b, func(got *part) bool {
		if len(got.tokens) >= after && !begun {
			begun = true
			asked.Go(func() { // tokens come in the meantime
				status, a := p.prefill.post(t, "/instance/v1/migrate", with(order, "operation", "op"))
				// 404 and 409: on a busy machine the answer may have ended before.
				if status != 200 && status != 404 && status != 409 {
					t.Errorf("status %d, %v", status, a)
				}
				ordered(status)
			})
		}
		return got.moved != nil
	})
	asked.Wait()
	if first.moved == nil {
		if first.text != want.text {
			t.Errorf("not moved: %q, want %q", first.text, want.text)
		}
		return 0
	}
	if n := first.usage["completion_tokens"]; n != float64(len(first.moved["weir_resume"].(map[string]any)["tokens"].([]any))) {
		t.Errorf("the leg's usage counts %v tokens", n)
	}
	began := time.Now()
	rest := with(b, "weir_resume", first.moved["weir_resume"])
	rest = with(rest, "kv_transfer_params", first.moved["kv_transfer_params"])
	if most, ok := b["max_tokens"].(int); ok {
		rest = with(rest, "max_tokens", most-len(first.moved["weir_resume"].(map[string]any)["tokens"].([]any)))
	}
	var gap time.Duration
	second := p.decode.read(t, "op", rest, func(*part) bool {
		if gap == 0 {
			gap = time.Since(began)
		}
		return false
	})
	if first.text+second.text != want.text || second.finish != want.finish {
		t.Errorf("%q + %q, %s; want %q, %s", first.text, second.text, second.finish, want.text, want.finish)
	}
	return gap
}

// halfWay is a model that stops in the middle of each answer until it is told to
// go on.
type halfWay struct {
	mu    sync.Mutex
	steps int
	open  chan struct{}
}

func (h *halfWay) before(spans []engine.Span) error {
	h.mu.Lock()
	if spans[0].Pos == 0 {
		h.steps, h.open = 0, make(chan struct{})
	}
	h.steps++
	steps, open := h.steps, h.open
	h.mu.Unlock()
	if steps == 40 {
		<-open
	}
	return nil
}

func (h *halfWay) goOn() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.open)
}

func TestMigrate(t *testing.T) {
	p := startPools(t, toy(runnertest.Options{Endless: true}))
	var h halfWay
	issue := certificates(t)
	p.prefill = start(t, issue(worker.Config{Role: "mixed"}, "source", pki.RoleWorker), toy(runnertest.Options{Endless: true, BeforeStep: h.before}))
	p.decode = start(t, issue(worker.Config{Role: "mixed"}, "destination", pki.RoleWorker), toy(runnertest.Options{Endless: true}))
	for _, sampled := range []float64{0, 1.2} {
		b := with(with(with(chat("toy", "a long way"), "max_tokens", 300), "temperature", sampled), "seed", 5)
		if migrates(t, p, b, 10, body{}, func(int) { h.goOn() }) == 0 {
			t.Error("it was not moved")
		}
	}
	checkCounts(t, p, 2)
	for operation, want := range map[string]int{"nobody": 404, "": 404} {
		if status, _ := p.prefill.post(t, "/instance/v1/migrate", body{"operation": operation}); status != want {
			t.Errorf("%q: status %d", operation, status)
		}
	}
}

// TestMigrateWhole: an answer that is not streamed can be moved as well.
func TestMigrateWhole(t *testing.T) {
	g := startGated(t, worker.Config{Role: "mixed"})
	answered := make(chan body, 1)
	go func() {
		defer close(answered)
		_, a := g.ask(t, "op", with(chat("toy", "hi"), "max_tokens", 50))
		answered <- a
	}()
	g.until(t, "it waits no more", func() bool {
		status, _ := g.post(t, "/instance/v1/migrate", body{"operation": "op"})
		return status == 200
	})
	for {
		select {
		case g.gate <- struct{}{}:
		case a := <-answered:
			moved, _ := a["weir_migrated"].(map[string]any)
			if a.choice()["finish_reason"] != "migrated" || moved["kv_transfer_params"] != nil {
				t.Errorf("%v", a)
			}
			if r := moved["weir_resume"].(map[string]any); r["text"] != a.text() || len(r["tokens"].([]any)) == 0 {
				t.Errorf("%v", moved)
			}
			return
		}
	}
}

// TestMigrateWaiting: who has no token yet is not moved.
func TestMigrateWaiting(t *testing.T) {
	g := startGated(t, worker.Config{Role: "mixed"})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		g.ask(t, "op", with(chat("toy", "hi"), "max_tokens", 3))
	}()
	eventually(t, "it is known", func() bool {
		status, _ := g.post(t, "/instance/v1/migrate", body{"operation": "op"})
		return status == 409
	})
	for {
		select {
		case g.gate <- struct{}{}:
		case <-answered:
			return
		}
	}
}

// TestLease: a hand-off lives on by order, and only by its operation's.
func TestLease(t *testing.T) {
	p := startPools(t, toy(runnertest.Options{}))
	b := chat("toy", "keep it")
	kv := p.prefillLeg(t, "op", b)
	status, a := p.prefill.post(t, "/instance/v1/lease", body{"handle": kv["remote_request_id"], "operation": "op"})
	if expires, _ := a["expires"].(float64); status != 200 || expires < kv["remote_blocks_expiry_time"].(float64) {
		t.Errorf("status %d, %v, before %v", status, a, kv["remote_blocks_expiry_time"])
	}
	status, _ = p.prefill.post(t, "/instance/v1/lease", body{"handle": kv["remote_request_id"], "operation": "other", "action": "release"})
	if status != 404 {
		t.Errorf("released by another operation: %d", status)
	}
	for name, order := range map[string]body{
		"another operation": {"handle": kv["remote_request_id"], "operation": "other"},
		"another handle":    {"handle": strings.Repeat("0", 32), "operation": "op"},
	} {
		if status, a := p.prefill.post(t, "/instance/v1/lease", order); status != 404 || a["error"].(map[string]any)["code"] != "handoff_gone" {
			t.Errorf("%s: %d, %v", name, status, a)
		}
	}
	for name, order := range map[string]body{"no handle": {"handle": "x"}, "no action": {"handle": kv["remote_request_id"], "operation": "op", "action": "sell"}} {
		if status, _ := p.prefill.post(t, "/instance/v1/lease", order); status != 400 {
			t.Errorf("%s: %d", name, status)
		}
	}
	status, _ = p.prefill.post(t, "/instance/v1/lease", body{"handle": kv["remote_request_id"], "operation": "op", "action": "release"})
	if again, _ := p.prefill.post(t, "/instance/v1/lease", body{"handle": kv["remote_request_id"], "operation": "op"}); status != 200 || again != 404 {
		t.Errorf("released: %d, then %d", status, again)
	}
}

// TestMigrationOfRealModels: token by token as if left alone, nothing computed
// twice.
func TestMigrationOfRealModels(t *testing.T) {
	lib, cache := llamatest.Library(t), t.TempDir()
	p := startPools(t, func() (engine.Runner, error) {
		return llama.Load(llama.Options{Name: "hub-cloud", LibDir: lib, CacheDir: cache, MaxSeqs: 4})
	})
	examples, err := heldout.Test()
	if err != nil {
		t.Fatal(err)
	}
	moved, n := 0, 12
	if os.Getenv("WEIR_SOAK") != "" {
		n = 100
	}
	var longest, total time.Duration
	for i := range n {
		b := with(with(chat("hub-cloud", examples[i*len(examples)/n].Prompt), "logprobs", false), "max_tokens", 600)
		b = with(b, "ignore_eos", true) // long enough to be moved
		order := body{}
		if i%2 == 0 {
			order["to"] = p.destination()
		}
		if gap := migrates(t, p, b, 2, order, func(int) {}); gap > 0 {
			moved++
			total += gap
			longest = max(longest, gap)
		}
	}
	if moved < n/4 {
		t.Errorf("only %d of %d were moved", moved, n)
	}
	checkCounts(t, p, float64(moved))
	t.Logf("%d moved, %v of them in stages; no token for %v on average, %v at most", moved,
		p.prefill.metric(t, "weir:migrations_total", "staged"), total/time.Duration(max(moved, 1)), longest)
}

// TestPrefixCacheOfRealModels: an answer has the same text whether its prompt was
// computed or cached.
func TestPrefixCacheOfRealModels(t *testing.T) {
	lib, cache := llamatest.Library(t), t.TempDir()
	for name, tt := range map[string]struct {
		load    func() (engine.Runner, error)
		prompts int
	}{
		"llama": {func() (engine.Runner, error) {
			return llama.Load(llama.Options{Name: "hub-cloud", LibDir: lib, CacheDir: cache, MaxSeqs: 4})
		}, 12},
		"llama, one buffer": {func() (engine.Runner, error) {
			return llama.Load(llama.Options{Name: "hub-cloud", LibDir: lib, CacheDir: cache, MaxSeqs: 4, KVTokens: 4096})
		}, 4},
		"moe": {func() (engine.Runner, error) {
			return moe.Load(moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 4})
		}, 2},
	} {
		n := tt.prompts
		if os.Getenv("WEIR_SOAK") != "" {
			n *= 8
		}
		t.Run(name, func(t *testing.T) { askTwice(t, tt.load, n) })
	}
}

// askTwice asks n questions with the cache, twice, and without.
func askTwice(t *testing.T, load func() (engine.Runner, error), n int) {
	cached := start(t, worker.Config{Role: "mixed", PrefixCache: "on"}, load)
	without := start(t, worker.Config{Role: "mixed", PrefixCache: "off"}, load)
	examples, err := heldout.Test()
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		b := chat("hub-cloud", examples[i*len(examples)/n].Prompt)
		_, want := without.ask(t, "", b)
		for range 2 {
			if _, got := cached.ask(t, "", b); got.text() != want.text() {
				t.Errorf("%q: %q, want %q", examples[i*len(examples)/n].Prompt, got.text(), want.text())
			}
		}
	}
	if hits := cached.metric(t, "vllm:prefix_cache_hits_total", ""); hits < float64(16*n) {
		t.Errorf("%v tokens were hit", hits)
	}
}
