package worker_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/engine/moe/evaluate"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/experts/rebalance"
	"github.com/weirhq/weir/internal/testproc"
)

// hubCloud loads the bundled mixture of experts.
func hubCloud(t testing.TB, b *moe.Balance) func() (engine.Runner, error) {
	cache := t.TempDir()
	return func() (engine.Runner, error) {
		r, err := moe.Load(moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 4, MaxBatch: 128, Shards: 4, Slots: 6, Balance: b})
		if err != nil {
			return nil, err
		}
		return r, nil
	}
}

const expertsPath = "/instance/v1/experts"

func view(t *testing.T, r *running) worker.ExpertsView {
	t.Helper()
	var v worker.ExpertsView
	resp, err := http.Get(r.url + expertsPath)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	return v
}

func give(t *testing.T, r *running, order string) (int, worker.ExpertsAnswer) {
	t.Helper()
	resp, err := http.Post(r.url+expertsPath, "application/json", strings.NewReader(order))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a worker.ExpertsAnswer
	if resp.StatusCode == http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, a
}

func TestExperts(t *testing.T) {
	b := moe.DefaultBalance()
	b.Window = 1 << 40 // never by itself
	r := start(t, worker.Config{Role: "decode", Name: "d1"}, hubCloud(t, &b))
	v := view(t, r)
	if v.Name != "d1" || v.Model != "hub-cloud" || v.Experts != 16 || len(v.Placement) != 6 || len(v.Shards) != 4 || v.Shards[0].Bytes == 0 || v.Balance.Window != b.Window {
		t.Errorf("%+v", v)
	}
	if code, a := give(t, r, `{"action":"rebalance"}`); code != http.StatusOK || a.Decision.Reason != rebalance.TooFewTokens {
		t.Errorf("without traffic: %d %+v", code, a)
	}
	code, _ := r.post(t, "/v1/completions", body{"model": "hub-cloud", "prompt": "what is 347 plus 58", "max_tokens": 200, "ignore_eos": true})
	if code != http.StatusOK {
		t.Fatalf("completion: %d", code)
	}
	if code, a := give(t, r, `{"action":"rebalance"}`); code != http.StatusOK || a.Decision.Action != rebalance.Move || len(a.Placement) != 6 {
		t.Errorf("with traffic: %d %+v", code, a)
	}
	if code, a := give(t, r, `{"action":"plan"}`); code != http.StatusOK || a.Decision.Reason != rebalance.Verifying {
		t.Errorf("plan: %d %+v", code, a)
	}
	if v = view(t, r); v.Generation != 1 || v.Moves != 1 || v.Window == nil || len(v.Decisions) != 2 || !(v.Mean >= 1) {
		t.Errorf("after a move: generation %d, %d moves, %d decisions", v.Generation, v.Moves, len(v.Decisions))
	}
	for _, bad := range []string{``, `{}`, `{"action":"dance"}`, `{"action":"plan","force":true}`, `[1]`} {
		if code, _ := give(t, r, bad); code != http.StatusBadRequest {
			t.Errorf("order %q: %d", bad, code)
		}
	}
	if got := r.metric(t, "weir:expert_placement_generation", ""); got != 1 {
		t.Errorf("generation %v in the metrics", got)
	}
}

func TestExpertsNone(t *testing.T) {
	for name, load := range map[string]func() (engine.Runner, error){
		"no_experts":    toy(runnertest.Options{}),
		"experts_fixed": hubCloud(t, nil),
	} {
		r := start(t, worker.Config{Role: "mixed"}, load)
		code, b := r.post(t, expertsPath, body{"action": "rebalance"})
		e, _ := b["error"].(map[string]any)
		if e["code"] != name || code != http.StatusNotFound && code != http.StatusConflict {
			t.Errorf("%s: %d %v", name, code, b)
		}
	}
}

// TestReroutedPerRequest: the line of each request tells what routing did with
// it, by its operation; cached tokens are not counted again.
func TestReroutedPerRequest(t *testing.T) {
	var log testproc.Log
	cache := t.TempDir()
	r := startLogging(t, slog.New(slog.NewJSONHandler(&log, nil)), worker.Config{Role: "mixed", PrefixCache: "on"}, func() (engine.Runner, error) {
		return moe.Load(moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 4, MaxBatch: 128, Shards: 4, Slots: 4, Gate: []gate.Params{evaluate.Recommended}})
	})
	for _, op := range []string{"first", "again"} {
		code, _ := r.ask(t, op, body{"model": "hub-cloud", "messages": []any{body{"role": "user", "content": "what is 347 plus 58, and what is 347 plus 59"}}, "max_tokens": 8, "ignore_eos": true})
		if code != http.StatusOK {
			t.Fatalf("%s: status %d", op, code)
		}
	}
	if err := r.stop(); err != nil { // all lines are there
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(log.String()) {
		var l struct {
			Msg, Operation string
			Prompt         int      `json:"prompt_tokens"`
			Cached         int      `json:"cached_tokens"`
			Answer         int      `json:"completion_tokens"`
			Choices        int      `json:"expert_choices"`
			Changed        *int     `json:"experts_changed"`
			Lost           *float64 `json:"mass_lost"`
		}
		if json.Unmarshal([]byte(line), &l) != nil || l.Msg != "request" {
			continue
		}
		seen[l.Operation] = true
		// The last token of an answer is never computed.
		if computed := l.Prompt - l.Cached + l.Answer - 1; l.Choices != 6*computed || l.Changed == nil || l.Lost == nil {
			t.Errorf("%d tokens in 6 layers: %s", computed, line)
		}
		if (l.Cached > 0) != (l.Operation == "again") {
			t.Errorf("the prefix cache: %s", line)
		}
	}
	if !seen["first"] || !seen["again"] {
		t.Errorf("requests without a line: %s", log.String())
	}
}
