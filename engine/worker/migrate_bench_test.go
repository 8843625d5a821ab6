package worker_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/state"
	"github.com/weirhq/weir/internal/pki"
)

// BenchmarkMigration moves an answer of hub-cloud after a prompt of 1,600 tokens
// (4.7 MiB of KV): from its stop to its next token, when all is copied
// then, and when all but the last tokens were copied before.
func BenchmarkMigration(b *testing.B) {
	lib, cache, issue := llamatest.Library(b), b.TempDir(), certificates(b)
	open := func(name string) *running {
		return start(b, issue(worker.Config{Role: "mixed"}, name, pki.RoleWorker), func() (engine.Runner, error) {
			return llama.Load(llama.Options{Name: "hub-cloud", LibDir: lib, CacheDir: cache, MaxSeqs: 4})
		})
	}
	ask := with(with(chat("hub-cloud", strings.Repeat("a long way ", 145)), "max_tokens", 200), "logprobs", false)
	ask = with(ask, "ignore_eos", true)
	for _, staged := range []bool{false, true} {
		b.Run(map[bool]string{false: "one stage", true: "staged"}[staged], func(b *testing.B) {
			p := &pools{prefill: open("source"), decode: open("destination")}
			order := body{"operation": "op"}
			if staged {
				order["to"] = p.destination()
			}
			for b.Loop() {
				p.moveOnce(b, ask, order)
			}
			s := p.decode.state(b)
			b.ReportMetric(s.DowntimeMS, "ms/downtime")
			b.ReportMetric(float64(s.MigratedIn), "moves")
		})
	}
}

// moveOnce has an answer moved after its second token, and reads it to its end.
func (p *pools) moveOnce(b *testing.B, ask, order body) {
	asked := make(chan struct{})
	begun := false
	first := p.prefill.read(b, "op", ask, func(got *part) bool {
		if len(got.tokens) > 1 && !begun {
			begun = true
			go func() {
				defer close(asked)
				p.prefill.post(b, "/instance/v1/migrate", order)
			}()
		}
		return got.moved != nil
	})
	<-asked
	if first.moved == nil {
		b.Fatal("the answer ended before it was moved")
	}
	rest := with(with(ask, "weir_resume", first.moved["weir_resume"]), "kv_transfer_params", first.moved["kv_transfer_params"])
	p.decode.read(b, "op", with(rest, "max_tokens", 5), toEnd)
}

// state reads what a worker says of itself.
func (r *running) state(t testing.TB) (m state.Message) {
	t.Helper()
	resp, err := http.Get(r.url + "/instance/v1/state")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}
