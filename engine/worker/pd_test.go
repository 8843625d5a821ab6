package worker_test

import (
	"fmt"
	"net"
	"strconv"
	"strings"
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
)

// pools is a mixed, a prefill and a decode worker on the same model.
type pools struct {
	mixed, prefill, decode *running
	issue                  func(c worker.Config, name string, role pki.Role) worker.Config
}

func startPools(t testing.TB, load func() (engine.Runner, error)) *pools {
	issue := certificates(t)
	role := func(name string) *running {
		return start(t, issue(worker.Config{Role: name}, name, pki.RoleWorker), load)
	}
	return &pools{mixed: role("mixed"), prefill: role("prefill"), decode: role("decode"), issue: issue}
}

func chat(model, question string) body {
	return body{"model": model, "messages": []any{body{"role": "user", "content": question}}, "temperature": 0, "logprobs": true}
}

func with(b body, member string, v any) body {
	c := body{member: v}
	for k, v := range b {
		if k != member {
			c[k] = v
		}
	}
	return c
}

// prefillLeg asks the prefill worker and returns its kv_transfer_params.
func (p *pools) prefillLeg(t testing.TB, operation string, b body) body {
	t.Helper()
	leg := with(with(b, "max_tokens", 1), "kv_transfer_params", body{"do_remote_decode": true, "do_remote_prefill": false,
		"remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil})
	status, a := p.prefill.ask(t, operation, leg)
	kv, ok := a["kv_transfer_params"].(map[string]any)
	if status != 200 || !ok {
		t.Fatalf("prefill leg: status %d, %v", status, a)
	}
	return kv
}

// both runs the two legs and returns the decode leg's answer.
func (p *pools) both(t testing.TB, operation string, b body) body {
	t.Helper()
	kv := p.prefillLeg(t, operation, b)
	status, a := p.decode.ask(t, operation, with(b, "kv_transfer_params", kv))
	if status != 200 {
		t.Fatalf("decode leg: status %d, %v", status, a)
	}
	return a
}

// TestPrefillDecodeEqualsMixed is the promise of disaggregation on the real
// model: token by token the same answer, no prompt token computed at decode.
func TestPrefillDecodeEqualsMixed(t *testing.T) {
	lib, cache := llamatest.Library(t), t.TempDir()
	own := 100
	if !moe.Fast() {
		own = 20
	}
	for _, c := range []struct {
		runner, model string
		prompts       int
		load          func() (engine.Runner, error)
	}{
		// The cloud's model is the one that is split in production.
		{"moe", "hub-cloud", own, func() (engine.Runner, error) {
			return moe.Load(moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 4})
		}},
		{"llama", "hub-cloud", 100, func() (engine.Runner, error) {
			return llama.Load(llama.Options{Name: "hub-cloud", LibDir: lib, CacheDir: cache, MaxSeqs: 4})
		}},
		{"llama", "hub-edge", 20, func() (engine.Runner, error) {
			return llama.Load(llama.Options{Name: "hub-edge", LibDir: lib, CacheDir: cache, MaxSeqs: 4})
		}},
	} {
		t.Run(c.runner+"/"+c.model, func(t *testing.T) {
			p := startPools(t, c.load)
			examples, err := heldout.Test()
			if err != nil {
				t.Fatal(err)
			}
			for i := range c.prompts { // over all tasks
				compare(t, p, c.model, examples[i*len(examples)/c.prompts].Prompt)
			}
			checkCounts(t, p, float64(c.prompts))
		})
	}
}

// compare asks both ways and wants the same tokens, log-probabilities included.
func compare(t *testing.T, p *pools, model, question string) {
	t.Helper()
	b := chat(model, question)
	status, want := p.mixed.ask(t, "", b)
	if status != 200 {
		t.Fatalf("mixed: status %d, %v", status, want)
	}
	got := p.both(t, "op-"+question, b)
	if fmt.Sprint(got.choice()) != fmt.Sprint(want.choice()) || fmt.Sprint(got["usage"]) != fmt.Sprint(want["usage"]) {
		t.Errorf("%q:\n  P/D   %q %v\n  mixed %q %v", question, got.text(), got["usage"], want.text(), want["usage"])
	}
}

// checkCounts wants n hand-offs and not one fallback.
func checkCounts(t *testing.T, p *pools, n float64) {
	t.Helper()
	if v := p.decode.metric(t, "weir:pd_fallback_total", ""); v != 0 {
		t.Errorf("pd_fallback_total is %v", v)
	}
	if v := p.decode.metric(t, "weir:prompt_tokens_computed_total", ""); v != 0 {
		t.Errorf("%v prompt tokens were computed at decode", v)
	}
	if v := p.decode.metric(t, "weir:kv_pull_bytes_total", ""); v < 1000*n {
		t.Errorf("%v bytes pulled", v)
	}
	if pulls := p.decode.metric(t, "weir:kv_pull_seconds", ""); pulls != n {
		t.Errorf("%v pulls", pulls)
	}
	eventually(t, "as many bytes sent as received", func() bool {
		return p.prefill.metric(t, "weir:kv_export_bytes_total", "") == p.decode.metric(t, "weir:kv_pull_bytes_total", "")
	})
}

// TestSampledPrefillDecode: with a seed the sampled answer is the same as well,
// because the first token is drawn at decode from the shipped logits.
func TestSampledPrefillDecode(t *testing.T) {
	p := startPools(t, toy(runnertest.Options{}))
	for seed := range 20 {
		b := with(with(with(chat("toy", "hi"), "temperature", 1.2), "seed", seed), "max_tokens", 40)
		_, want := p.mixed.ask(t, "", b)
		if got := p.both(t, "op", b); got.text() != want.text() || want.text() == "" {
			t.Errorf("seed %d: %q, want %q", seed, got.text(), want.text())
		}
	}
	checkCounts(t, p, 20)
}

// TestFallback damages the hand-off in every way that a gateway or a peer could:
// the answer stays the same and the reason is counted.
func TestFallback(t *testing.T) {
	p := startPools(t, toy(runnertest.Options{}))
	b := chat("toy", "what is the weather")
	_, want := p.mixed.ask(t, "", b)
	dead := freePort(t)
	hasty := start(t, p.issue(worker.Config{Role: "decode", KVPatience: time.Second}, "hasty", pki.RoleWorker), toy(runnertest.Options{}))
	for _, tt := range []struct {
		name, reason, operation string
		harm                    func(kv body)
	}{
		{"wrong operation", "gone", "another", nil},
		{"unknown handle", "gone", "op", func(kv body) { kv["remote_request_id"] = strings.Repeat("0", 32) }},
		{"no handle", "params", "op", func(kv body) { kv["remote_request_id"] = "chatcmpl-1" }},
		{"no host", "params", "op", func(kv body) { kv["remote_host"] = nil }},
		{"port out of range", "params", "op", func(kv body) { kv["remote_port"] = 70000 }},
		{"port is text", "params", "op", func(kv body) { kv["remote_port"] = "5600" }},
		{"nobody there", "dial", "op", func(kv body) { kv["remote_port"] = dead }},
		{"other weights", "verify", "op", func(kv body) { kv["weir"].(map[string]any)["fingerprint"] = "x" }},
		{"other bytes promised", "verify", "op", func(kv body) { kv["weir"].(map[string]any)["sha256"] = "00" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			decode := p.decode
			if tt.reason == "dial" { // of a wait that ends with the worker's patience
				decode = hasty
			}
			before := decode.metric(t, "weir:pd_fallback_total", tt.reason)
			computed := decode.metric(t, "weir:prompt_tokens_computed_total", "decode_leg")
			kv := p.prefillLeg(t, "op", b)
			if tt.harm != nil {
				tt.harm(kv)
			}
			status, got := decode.ask(t, tt.operation, with(b, "kv_transfer_params", kv))
			if status != 200 || fmt.Sprint(got.choice()) != fmt.Sprint(want.choice()) {
				t.Errorf("status %d, %v", status, got)
			}
			if v := decode.metric(t, "weir:pd_fallback_total", tt.reason); v != before+1 {
				t.Errorf("pd_fallback_total{%s} went from %v to %v", tt.reason, before, v)
			}
			if v := decode.metric(t, "weir:prompt_tokens_computed_total", "decode_leg"); v <= computed {
				t.Errorf("computed %v, before %v", v, computed)
			}
		})
	}
	t.Run("another prompt", func(t *testing.T) {
		kv := p.prefillLeg(t, "op", chat("toy", "what is the whether"))
		if _, got := p.decode.ask(t, "op", with(b, "kv_transfer_params", kv)); got.text() != want.text() {
			t.Errorf("%q, want %q", got.text(), want.text())
		}
	})
	t.Run("second reader", func(t *testing.T) {
		before := p.decode.metric(t, "weir:pd_fallback_total", "gone")
		kv := p.prefillLeg(t, "op", b)
		for range 2 {
			if _, got := p.decode.ask(t, "op", with(b, "kv_transfer_params", kv)); got.text() != want.text() {
				t.Errorf("%q, want %q", got.text(), want.text())
			}
		}
		if v := p.decode.metric(t, "weir:pd_fallback_total", "gone"); v != before+1 {
			t.Errorf("%v, before %v", v, before)
		}
	})
}

// freePort is a UDP port on which nobody listens.
func freePort(t *testing.T) int {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, port, _ := net.SplitHostPort(c.LocalAddr().String())
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPrefillWorkerDies: killed between the legs, the answer still comes.
func TestPrefillWorkerDies(t *testing.T) {
	p := startPools(t, toy(runnertest.Options{}))
	b := chat("toy", "is anybody there")
	_, want := p.mixed.ask(t, "", b)
	if got := p.both(t, "op", b); got.text() != want.text() { // the connection is warm
		t.Fatalf("%q, want %q", got.text(), want.text())
	}
	kv := p.prefillLeg(t, "op", b)
	if err := p.prefill.stop(); err != nil {
		t.Fatal(err)
	}
	if _, got := p.decode.ask(t, "op", with(b, "kv_transfer_params", kv)); got.text() != want.text() {
		t.Errorf("%q, want %q", got.text(), want.text())
	}
	if v := p.decode.metric(t, "weir:pd_fallback_total", ""); v != 1 {
		t.Errorf("pd_fallback_total is %v", v)
	}
}

// TestForeignPeers: neither a stranger's certificate nor a gateway's may fetch
// or serve KV.
func TestForeignPeers(t *testing.T) {
	issue := certificates(t)
	prefill := start(t, issue(worker.Config{Role: "prefill"}, "p", pki.RoleWorker), toy(runnertest.Options{}))
	stranger := certificates(t)
	for name, c := range map[string]worker.Config{
		"stranger": stranger(worker.Config{Role: "decode"}, "d", pki.RoleWorker),
		"gateway":  issue(worker.Config{Role: "decode"}, "g", pki.RoleGateway),
	} {
		t.Run(name, func(t *testing.T) {
			d := start(t, c, toy(runnertest.Options{}))
			p := pools{mixed: d, prefill: prefill, decode: d}
			b := chat("toy", "let me in")
			_, want := d.ask(t, "", b)
			if got := p.both(t, "op", b); got.text() != want.text() {
				t.Errorf("%q, want %q", got.text(), want.text())
			}
			if v := d.metric(t, "weir:kv_pull_bytes_total", ""); v != 0 {
				t.Errorf("%v bytes came", v)
			}
			if v := d.metric(t, "weir:pd_fallback_total", ""); v != 1 {
				t.Errorf("pd_fallback_total is %v", v)
			}
		})
	}
}
