package worker_test

import (
	"strings"
	"testing"

	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/internal/pki"
)

// cachingPools is startPools with prefix caches.
func cachingPools(t *testing.T) *pools {
	issue := certificates(t)
	role := func(name string) *running {
		return start(t, issue(worker.Config{Role: name, PrefixCache: "on"}, name, pki.RoleWorker), toy(runnertest.Options{Endless: true}))
	}
	return &pools{mixed: role("mixed"), prefill: role("prefill"), decode: role("decode"), issue: issue}
}

// TestSplitWithCaches: the prefill worker keeps what it computed and the decode
// worker what it decoded; the answers stay the same and nothing is computed at
// decode.
func TestSplitWithCaches(t *testing.T) {
	p := cachingPools(t)
	b := with(chat("toy", strings.Repeat("the same question ", 10)), "max_tokens", 40)
	_, want := p.mixed.ask(t, "", b)
	for range 3 {
		if got := p.both(t, "op", b); got.text() != want.text() {
			t.Errorf("%q, want %q", got.text(), want.text())
		}
	}
	checkCounts(t, p, 3)
	prompt := want["usage"].(map[string]any)["prompt_tokens"].(float64)
	if v := p.prefill.metric(t, "vllm:prefix_cache_hits_total", ""); v != 2*(prompt-1) {
		t.Errorf("%v tokens hit at prefill, want %v", v, 2*(prompt-1))
	}
	// What the decode worker has, it needs from nobody.
	if _, got := p.decode.ask(t, "", b); got.text() != want.text() {
		t.Errorf("%q, want %q", got.text(), want.text())
	}
	if v := p.decode.metric(t, "vllm:prefix_cache_hits_total", ""); v != prompt-1 {
		t.Errorf("%v tokens hit at decode, want %v", v, prompt-1)
	}
}

// TestResumeSplit: an answer whose decode worker died is prefilled again, with
// what was generated, and goes on at another.
func TestResumeSplit(t *testing.T) {
	p := cachingPools(t)
	b := with(with(with(chat("toy", "who goes on?"), "max_tokens", 80), "temperature", 1.1), "seed", 3)
	want := p.mixed.read(t, "", b, toEnd)
	first := p.mixed.read(t, "", with(b, "max_tokens", 30), toEnd)
	rest := with(with(b, "weir_resume", body{"text": first.text, "tokens": first.tokens}), "max_tokens", 50)
	got := p.decode.read(t, "op", with(rest, "kv_transfer_params", p.prefillLeg(t, "op", rest)), toEnd)
	if first.text+got.text != want.text || got.finish != "length" {
		t.Errorf("%q + %q, %s; want %q", first.text, got.text, got.finish, want.text)
	}
	checkCounts(t, p, 1)
}
