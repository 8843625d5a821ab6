package poolse2e

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/worker/state"
)

// TestPromptsKVOutlivesReaders: the KV of a prompt waits at its worker under a
// lease. A decode worker that dies before it has read it is replaced by another
// one, which reads it: no token of the prompt is computed twice. When the gateway
// dies that holds the lease, the lease ends and the worker has all its memory
// back.
func TestPromptsKVOutlivesReaders(t *testing.T) {
	library(t)
	f := emptyFleet(t, loopback{})
	f.pool(t, exactly(model, f.randomModel(t, 5e6, gguf.F32), "llama"), "p1", "d1", "d2")
	f.gateways(t, true)
	t.Run("a decode worker dies", f.readElsewhere)
	t.Run("a gateway dies", f.leaseEnds)
}

// held are the KV bytes that wait at p1 to be read.
func (f *fleet) held(t *testing.T) float64 { return f.worker(t, "p1", "weir:kv_exports_bytes", "") }

// blocked has the gateway compute a prompt at p1 and wait at a decode worker that
// does not run, as the other one does not. It returns the worker.
func (f *fleet) blocked(t *testing.T, gateway, prompt string) (victim, other *process, got chan answer) {
	t.Helper()
	f.idle(t)
	for _, d := range []string{"d1", "d2"} {
		f.all[d].signal(t, syscall.SIGSTOP)
		t.Cleanup(func() { f.all[d].signal(t, syscall.SIGCONT) })
	}
	got = make(chan answer, 1)
	q := question{model: model, prompt: prompt + strings.Repeat(" and on", 40), tokens: 20, stream: true}
	go func() { got <- f.pose(context.WithoutCancel(t.Context()), gateway, q) }()
	eventually(t, "the prompt is computed and its KV kept", func() bool { return f.held(t) > 0 })
	eventually(t, "a decode worker has the request", func() bool {
		for _, in := range f.pools(gateway) {
			if in.Role == "decode" && in.InFlight.Requests > 0 {
				victim = f.all[in.Name]
			}
		}
		return victim != nil
	})
	other = f.all[map[string]string{"d1": "d2", "d2": "d1"}[victim.name]]
	return victim, other, got
}

func (f *fleet) readElsewhere(t *testing.T) {
	const computed = "weir:prompt_tokens_computed_total"
	once := f.worker(t, "p1", computed, "")
	victim, other, got := f.blocked(t, "g1", "first")
	other.signal(t, syscall.SIGCONT)
	eventually(t, other.name+" is believed again", func() bool {
		return slices.ContainsFunc(f.pools("g1"), func(in pooled) bool { return in.Name == other.name && in.Ready && !in.Suspect })
	})
	before := f.tally(t, other)
	victim.kill()
	a := <-got
	once = f.worker(t, "p1", computed, "") - once
	if !a.whole() || a.made != 20 || a.attempts != 2 || float64(a.prompt) != once {
		t.Errorf("%+v, %v prompt tokens were computed", a, once)
	}
	f.handedOver(t, other, before, 1)
	if d := f.tally(t, other).minus(before); d.recomputed != 0 {
		t.Errorf("%+v", d)
	}
	eventually(t, "nothing waits to be read", func() bool { return f.held(t) == 0 })
	victim.start(t)
	f.ready(t, "g1")
	f.ready(t, "g2")
	f.idle(t)
}

func (f *fleet) leaseEnds(t *testing.T) {
	const expired = "weir:kv_exports_expired_total"
	before := f.worker(t, "p1", expired, "")
	f.blocked(t, "g1", "second")
	f.all["g1"].kill()
	eventually(t, "the lease has ended", func() bool { return f.worker(t, "p1", expired, "") == before+1 })
	if n := f.held(t); n != 0 {
		t.Errorf("%v bytes are kept", n)
	}
	for _, d := range []string{"d1", "d2"} {
		f.all[d].signal(t, syscall.SIGCONT)
	}
	f.all["g1"].start(t)
	f.ready(t, "g1")
	f.ready(t, "g2")
	f.idle(t)
	for _, name := range []string{"p1", "d1", "d2"} {
		if s := f.state(t, name); s.KVBlocksUsed != 0 || s.Running != 0 {
			t.Errorf("%s: %+v", name, s.Load)
		}
	}
}

// state is what a worker says of itself.
func (f *fleet) state(t *testing.T, name string) (m state.Message) {
	t.Helper()
	resp, err := f.http.Get(f.all[name].url + "/instance/v1/state")
	if err == nil {
		defer resp.Body.Close()
		err = json.NewDecoder(resp.Body).Decode(&m)
	}
	if err != nil {
		t.Fatalf("state of %s: %v", name, err)
	}
	return m
}
