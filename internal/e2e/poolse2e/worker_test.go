package poolse2e

import (
	"os"
	"testing"
)

// TestWorkerKilledWithRealModel kills the worker that streams an answer of the
// bundled model: the client gets the text that it would have got, token by
// token, and no sign of the death.
func TestWorkerKilledWithRealModel(t *testing.T) {
	lib := os.Getenv("WEIR_LIB")
	if lib == "" {
		t.Skip("WEIR_LIB is not set: it names the folder of llama.cpp's libraries")
	}
	f := emptyFleet(t, loopback{})
	for _, name := range []string{"m1", "m2"} {
		f.instance(t, name, "mixed", "worker", "--model", "hub-cloud", "--runner", "llama", "--name", name, "--lib", lib, "--threads", "1", "--max-seqs", "4", "--log-level", "error")
	}
	f.gateways(t, true)
	const tokens = 400
	want := f.ask(t.Context(), "g1", 1, tokens, false)
	if !want.whole() || want.text == "" {
		t.Fatalf("before anything happened: %+v", want)
	}
	var victim *process
	got := f.ask(t.Context(), "g1", 1, tokens, true, func() {
		for _, in := range f.pools("g1") {
			if in.InFlight.Requests > 0 {
				victim = f.all[in.Name]
			}
		}
		if victim == nil {
			t.Error("no worker has the stream")
			return
		}
		victim.kill()
	})
	if !got.whole() || got.text != want.text {
		t.Errorf("got %+v\nwant the text %q", got, want.text)
	}
	var l struct{ Rows []struct{ Outcome string } }
	eventually(t, "two attempts in the ledger", func() bool {
		return f.get(f.all["g1"].url+"/admin/v1/usage?operation_id="+got.operation, f.admin, &l) == nil && len(l.Rows) == 2
	})
	if victim != nil {
		victim.start(t)
		f.ready(t, "g1")
		f.ready(t, "g2")
		f.idle(t)
	}
}
