package poolse2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/gguf"
)

// TestClientLeavesRealWorkers: a client leaves at each stage of its request.
// Both legs end, long before the answer would, and the gateway keeps nothing.
func TestClientLeavesRealWorkers(t *testing.T) {
	f := emptyFleet(t, loopback{})
	// Small steps: a long prompt takes a hundred of them, and seconds.
	f.pool(t, served{model: model, file: f.randomModel(t, 20e6, gguf.Q8_0), runner: "llama", seqs: 16, cache: "on", flags: []string{"--max-batch", "16"}}, "p1", "d1")
	f.gateways(t, true)
	long := strings.Repeat("many words ", 340)
	warm := f.askWith(t.Context(), "g1", "short", 8, true)
	if !warm.whole() {
		t.Fatalf("before anything happened: %+v", warm)
	}
	f.idle(t)
	f.http.CloseIdleConnections()
	before := f.gauge("g1", "go_goroutines")
	const length, made, computed = 3000, "vllm:generation_tokens_total", "weir:prompt_tokens_computed_total"
	const step = 512 // tokens of a prompt that nobody else disturbs
	for _, stage := range []struct {
		name, prompt string
		stream       bool
		at           string // who has it
		first        bool   // leaves at the first token
	}{{"the prompt", "0 " + long, true, "p1", false}, {"a stream", "1", true, "d1", true}, {"a whole answer", "2", false, "d1", false}} {
		t.Run(stage.name, func(t *testing.T) {
			before := f.metric(f.all["d1"].url, made)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			seen, left := make(chan struct{}), make(chan answer)
			go func() {
				left <- f.askWith(ctx, "g1", stage.prompt, length, stage.stream, func() { close(seen) })
			}()
			eventually(t, stage.at+" computes", func() bool { return f.runs(stage.at) == 1 })
			if stage.first {
				<-seen
			}
			prompt := f.worker(t, "p1", computed, "")
			at := time.Now()
			leave()
			if a := <-left; a.whole() {
				t.Fatalf("the answer was whole: %+v", a)
			}
			eventually(t, "nobody computes", func() bool { return f.runs("p1") == 0 && f.runs("d1") == 0 })
			took := time.Since(at).Round(time.Millisecond)
			f.idle(t)
			prompt = f.worker(t, "p1", computed, "") - prompt
			t.Logf("left at %s: both workers idle after %v and %.0f more tokens of the prompt", stage.name, took, prompt)
			if prompt > 2*step { // one may end while the word is on its way
				t.Errorf("%.0f tokens of the prompt were computed for nobody", prompt)
			}
			most := length - 1.0
			if stage.at == "p1" {
				most = 0
			}
			if n := f.metric(f.all["d1"].url, made) - before; n > most {
				t.Errorf("%.0f of %d tokens were made", n, length)
			}
		})
	}
	f.http.CloseIdleConnections()
	eventually(t, fmt.Sprintf("no more goroutines than before (%.0f)", before), func() bool {
		f.http.CloseIdleConnections()
		return f.gauge("g1", "go_goroutines") <= before
	})
	var l struct{ Rows []struct{ Outcome string } }
	eventually(t, "three cancelled rows", func() bool {
		n := 0
		if f.get(f.all["g1"].url+"/admin/v1/usage", f.admin, &l) == nil {
			for _, r := range l.Rows {
				if r.Outcome == "client_cancelled" {
					n++
				}
			}
		}
		return n == 3
	})
}

// runs is how many requests an instance says that it has.
func (f *fleet) runs(name string) int {
	for _, in := range f.pools("g1") {
		if in.Name == name && in.Report != nil {
			return in.Report.Running + in.Report.Waiting
		}
	}
	return -1
}
