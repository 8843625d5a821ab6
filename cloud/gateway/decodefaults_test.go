package gateway

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/tenants"
)

// TestFaultsOfTheDecodeLeg: whatever a decode instance does before its first
// token, another gives the answer. One that has refused has read nothing: the
// prompt is not computed again.
func TestFaultsOfTheDecodeLeg(t *testing.T) {
	t.Parallel()
	again := []tenants.Outcome{tenants.OutcomeUpstreamError, tenants.OutcomeOK}
	once := []tenants.Outcome{tenants.OutcomeOK}
	for _, tt := range []struct {
		fate
		prefills int
	}{
		{fate{refused, again, 1, true}, 1}, {fate{fake.FaultBusy, again, 0, true}, 1}, {fate{fake.FaultRateLimit, again, 0, true}, 1},
		{fate{fake.FaultSlow, once, 0, true}, 1}, {fate{fake.FaultNoDone, once, 0, false}, 1},
		{fate{fake.FaultReset, again, 1, true}, 2}, {fate{fake.FaultCut, again, 1, true}, 2}, {fate{fake.FaultStall, again, 1, false}, 2},
		{fate{fake.FaultMalformed, again, 1, true}, 2}, {fate{fake.FaultErrorEvent, again, 1, true}, 2},
		{fate{fake.FaultLongLine, again, 1, true}, 2}, {fate{fake.FaultTruncated, again, 1, true}, 2},
		{fate{fake.FaultStatus500, again, 1, true}, 2}, {fate{fake.FaultContentType, again, 1, true}, 2},
		{fate{fake.FaultEmpty, again, 1, true}, 2}, {fate{fake.FaultTransfer, again, 1, true}, 2},
	} {
		for _, stream := range []bool{true, false} {
			if !stream && !tt.whole {
				continue
			}
			t.Run(string(tt.fault)+map[bool]string{true: ", streamed"}[stream], func(t *testing.T) {
				b := tt.begins(t, "d1", false, "p", "d1", "d2")
				b.befalls("d1", fake.Script{Fault: tt.fault, Leg: fake.Decode})
				b.ends(t, "d1", tt.fate, stream, true)
				if n := b.engines["p"].Calls() - 1; n != tt.prefills { // one is of the answer to compare with
					t.Errorf("%d prefills, want %d", n, tt.prefills)
				}
			})
		}
	}
}

// TestFaultsOfTheDecodeLegLater: a stream that breaks after its first tokens is
// continued by the other decode instance where instances can do that, over a
// prefill of what was shown.
func TestFaultsOfTheDecodeLegLater(t *testing.T) {
	t.Parallel()
	broken := []tenants.Outcome{tenants.OutcomeUpstreamTruncated}
	for _, fault := range []fake.Fault{fake.FaultReset, fake.FaultCut, fake.FaultStall, fake.FaultMalformed, fake.FaultErrorEvent,
		fake.FaultLongLine, fake.FaultTruncated, fake.FaultNoDone} {
		for _, weir := range []bool{false, true} {
			t.Run(string(fault)+map[bool]string{true: ", resumable"}[weir], func(t *testing.T) {
				f, prefills := fate{fault: fault, rows: broken, failures: 1}, 1
				if weir {
					f.rows, prefills = append(f.rows, tenants.OutcomeOK), 2
				}
				b := f.begins(t, "d1", weir, "p", "d1", "d2")
				b.befalls("d1", fake.Script{Fault: fault, After: 3, Leg: fake.Decode})
				b.ends(t, "d1", f, true, weir)
				if n := b.engines["p"].Calls() - 1; n != prefills {
					t.Errorf("%d prefills, want %d", n, prefills)
				}
			})
		}
	}
}

// TestNoDecodeInstanceHasRoom: the client is told when to come back, and no
// breaker counts that.
func TestNoDecodeInstanceHasRoom(t *testing.T) {
	for _, fault := range []fake.Fault{fake.FaultBusy, fake.FaultRateLimit} {
		for _, weir := range []bool{false, true} {
			b := fate{}.begins(t, "d1", weir, "p", "d1", "d2")
			for _, name := range []string{"d1", "d2"} {
				b.befalls(name, fake.Script{Fault: fault, Leg: fake.Decode})
			}
			got := b.chat(t, ask1s)
			after, _ := strconv.Atoi(got.header.Get("Retry-After"))
			if got.status != http.StatusServiceUnavailable || after < 1 || errorOf(t, got.body)["code"] != "no_instance_available" {
				t.Errorf("%s, weir %v: answer %d %v %s", fault, weir, got.status, got.header, got.body)
			}
			if n := b.engines["p"].Calls(); n != 1 || b.failures("d1")+b.failures("d2") != 0 {
				t.Errorf("%s, weir %v: %d prefills, %d and %d failures", fault, weir, n, b.failures("d1"), b.failures("d2"))
			}
		}
	}
}
