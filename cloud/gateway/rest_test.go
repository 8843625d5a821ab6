package gateway

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/tenants"
)

// TestPausesAreKept: an instance that says when to come back is not asked before,
// and the client is told the least of what they say.
func TestPausesAreKept(t *testing.T) {
	says := map[string]string{"a": "29", "b": "20"}
	var asked atomic.Int32
	var all []*instanceFake
	for name, after := range says {
		in := newInstance(t, name, "mixed")
		in.on(func(w http.ResponseWriter, _ *http.Request, _ map[string]any) bool {
			asked.Add(1)
			w.Header().Set("Retry-After", after)
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		})
		all = append(all, in)
	}
	r := newRig(t, nil, all...)
	for range 3 {
		got := r.chat(t, ask1)
		ms, _ := strconv.Atoi(got.header.Get("Retry-After-Ms"))
		if got.status != http.StatusServiceUnavailable || errorOf(t, got.body)["code"] != "no_instance_available" || ms <= 0 || ms > 20_000 {
			t.Errorf("%d, after %d ms: %s", got.status, ms, got.body)
		}
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times, want once each", n)
	}
}

// TestOneRestsOthersServe: and the pause ends.
func TestOneRestsOthersServe(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Policy = preferring("a") }, false, "a", "b")
	b.engines["a"].SetFaults(fake.Script{Fault: fake.FaultRateLimit, Times: 1})
	began := time.Now() // the pause of a second has not begun
	for range 3 {
		if got := b.chat(t, ask1); got.status != http.StatusOK {
			t.Errorf("answer %d %s", got.status, got.body)
		}
		if n := b.engines["a"].Calls(); n != 1 && time.Since(began) < time.Second || b.failures("a") != 0 {
			t.Errorf("a was asked %d times, has %d failures", n, b.failures("a"))
		}
	}
	for deadline := time.Now().Add(time.Minute); b.engines["a"].Calls() == 1 && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		b.chat(t, ask1)
	}
	if b.engines["a"].Calls() == 1 {
		t.Error("a is not asked any more")
	}
}

// TestThereAndBack: an answer may come back to an instance that gave it away,
// when the next one gives it away too.
func TestThereAndBack(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Policy = preferring("a") }, true, "a", "b")
	want := text(t, b.chat(t, ask1).body)
	first, second := make(chan struct{}), make(chan struct{})
	b.hold.Store(&first)
	done := b.later(t, ask1su)
	givesAway := func(name string) func() bool {
		return func() bool {
			op := b.engines[name].Operation()
			return op != "" && b.order(t, name, "migrate", `{"operation":"`+op+`"}`)
		}
	}
	await(t, "a gives it away", givesAway("a"))
	b.hold.Store(&second)
	close(first)
	await(t, "b gives it away", givesAway("b"))
	b.hold.Store(nil)
	close(second)
	got := take(t, "the answer", done)
	rows := b.ledger(t)[1:]
	if len(rows) != 3 || rows[0].Outcome != tenants.OutcomeSuperseded || rows[1].Outcome != tenants.OutcomeSuperseded || rows[2].Outcome != tenants.OutcomeOK {
		t.Fatalf("ledger %v", outcomes(rows))
	}
	if shown := text(t, got.body); shown != want {
		t.Errorf("shown %q, want %q", shown, want)
	}
}
