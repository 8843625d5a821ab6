package worker_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/internal/pki"
)

// slowly is a model that takes its time from the tenth token of an answer on, so
// that an answer is still running when it has been copied.
type slowly struct{ free atomic.Bool }

func (s *slowly) before(spans []engine.Span) error {
	if spans[0].Pos > 60 && !s.free.Load() {
		time.Sleep(15 * time.Millisecond)
	}
	return nil
}

// movers are two workers between which a long answer can be moved in stages.
type movers struct {
	*pools
	slowly
	heir func(name string) *running // another one
}

func startMovers(t *testing.T) *movers {
	m, issue := &movers{pools: &pools{}}, certificates(t)
	begin := func(name string, o runnertest.Options) *running {
		o.Endless = true
		return start(t, issue(worker.Config{Role: "mixed", KVPatience: 2 * time.Second}, name, pki.RoleWorker), toy(o)) // less than a long answer takes
	}
	m.heir = func(name string) *running { return begin(name, runnertest.Options{}) }
	m.mixed, m.decode = m.heir("alone"), m.heir("destination")
	m.prefill = begin("source", runnertest.Options{BeforeStep: m.before})
	return m
}

func longAnswer(seed int, sampled float64) body {
	return with(with(with(chat("toy", "a long way"), "max_tokens", 440), "temperature", sampled), "seed", seed)
}

// TestMigrateInStages: the same answer as if left alone, nothing computed twice,
// and only the last tokens' KV is read while it stands still.
func TestMigrateInStages(t *testing.T) {
	m := startMovers(t)
	for _, sampled := range []float64{0, 1.2} {
		m.free.Store(false)
		gap := migrates(t, m.pools, longAnswer(5, sampled), 10, body{"to": m.destination()}, func(int) { m.free.Store(true) })
		if gap == 0 {
			t.Error("it was not moved")
		}
	}
	checkCounts(t, m.pools, 2)
	if n := m.prefill.metric(t, "weir:migrations_total", "staged"); n != 2 {
		t.Errorf("%v moved in stages", n)
	}
	if ahead := m.prefill.metric(t, "weir:migration_bytes_total", ""); ahead < 2*8*60 {
		t.Errorf("%v bytes were sent ahead", ahead)
	}
	if n := m.decode.metric(t, "weir:migration_downtime_seconds", ""); n != 2 {
		t.Errorf("%v downtimes", n)
	}
}

// TestMoveIsAborted: a destination that is not there, or that has another model,
// leaves the answer where it is.
func TestMoveIsAborted(t *testing.T) {
	m := startMovers(t)
	issue := certificates(t)
	other := start(t, issue(worker.Config{Role: "mixed"}, "stranger", pki.RoleWorker), toy(runnertest.Options{}))
	stranger := (&pools{decode: other}).destination()
	for name, to := range map[string]body{"nobody there": {"name": "x", "host": "127.0.0.1", "port": 1}, "of another authority": stranger} {
		m.free.Store(false)
		before := m.prefill.metric(t, "weir:migrations_total", "aborted")
		b := longAnswer(7, 0)
		if gap := migrates(t, m.pools, b, 10, body{"to": to}, func(status int) {
			if status != 409 {
				t.Errorf("%s: status %d", name, status)
			}
			m.free.Store(true)
		}); gap != 0 {
			t.Errorf("%s: it was moved", name)
		}
		if n := m.prefill.metric(t, "weir:migrations_total", "aborted"); n != before+1 {
			t.Errorf("%s: %v aborted, %v before", name, n, before)
		}
	}
}

// TestDestinationDies: between the stages and the hand-off. Another worker reads
// the whole.
func TestDestinationDies(t *testing.T) {
	m := startMovers(t)
	gap := migrates(t, m.pools, longAnswer(9, 0), 10, body{"to": m.destination()}, func(int) {
		if err := m.decode.stop(); err != nil {
			t.Error(err)
		}
		m.decode = m.heir("heir")
		m.free.Store(true)
	})
	if gap == 0 {
		t.Error("it was not moved")
	}
	if v := m.decode.metric(t, "weir:pd_fallback_total", ""); v != 0 {
		t.Errorf("%v fallbacks", v)
	}
}
