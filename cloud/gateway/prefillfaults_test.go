package gateway

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/tenants"
)

// TestFaultsOfThePrefillLeg: whatever a prefill instance does, another prefills,
// and the answer is whole.
func TestFaultsOfThePrefillLeg(t *testing.T) {
	t.Parallel()
	again := []tenants.Outcome{tenants.OutcomeUpstreamError, tenants.OutcomeOK}
	once := []tenants.Outcome{tenants.OutcomeOK}
	for _, f := range []fate{
		{fault: refused, rows: again, failures: 1}, {fault: fake.FaultReset, rows: again, failures: 1}, {fault: fake.FaultCut, rows: again, failures: 1},
		{fault: fake.FaultStall, rows: again, failures: 1}, {fault: fake.FaultSlow, rows: once}, {fault: fake.FaultMalformed, rows: again, failures: 1},
		{fault: fake.FaultErrorEvent, rows: again, failures: 1}, {fault: fake.FaultLongLine, rows: again, failures: 1},
		{fault: fake.FaultTruncated, rows: again, failures: 1}, {fault: fake.FaultStatus500, rows: again, failures: 1},
		{fault: fake.FaultBusy, rows: again}, {fault: fake.FaultRateLimit, rows: again}, {fault: fake.FaultContentType, rows: again, failures: 1},
		{fault: fake.FaultEmpty, rows: again, failures: 1},
	} {
		t.Run(string(f.fault), func(t *testing.T) {
			b := f.begins(t, "p1", false, "p1", "p2", "d")
			b.befalls("p1", fake.Script{Fault: f.fault, Leg: fake.Prefill})
			got := b.chat(t, ask1su)
			rows := b.ledger(t)
			if !slices.Equal(outcomes(rows), f.rows) || b.failures("p1") != f.failures {
				t.Errorf("ledger %v, want %v; breaker counts %d, want %d", outcomes(rows), f.rows, b.failures("p1"), f.failures)
			}
			if got.status != 200 || !strings.HasSuffix(got.body, "[DONE]\n\n") {
				t.Fatalf("answer %d %s", got.status, got.body)
			}
			b.checkWholeStream(t, got.body, 16)
			if n := b.engines["d"].Calls(); n != 1 {
				t.Errorf("%d decode legs", n)
			}
		})
	}
}

// TestFlapping: an instance that fails every second time stays in the pool, its
// failures are retried, and one that always fails is left out by its breaker.
func TestFlapping(t *testing.T) {
	for _, tt := range []struct {
		every, most int // failures that requests may meet
	}{{2, 10}, {0, 3}} {
		b := newBench(t, func(o *Options) { o.Policy = nil }, false, "a", "b")
		b.engines["a"].SetFaults(fake.Script{Fault: fake.FaultStatus500, Every: tt.every})
		for range 20 {
			if got := b.chat(t, ask1s); got.status != 200 || !strings.HasSuffix(got.body, "[DONE]\n\n") {
				t.Fatalf("answer %d %s", got.status, got.body)
			}
		}
		rows := b.ledger(t)
		failed := len(rows) - 20
		if failed < 1 || failed > tt.most {
			t.Errorf("every %d: %d attempts failed, at most %d expected", tt.every, failed, tt.most)
		}
	}
}
