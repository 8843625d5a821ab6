package moe_test

import (
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/engine/moe/evaluate"
	"github.com/weirhq/weir/experts/load"
)

// TestRouting turns LASER-style routing on: choices change, load evens out, the
// model still works, and each sequence's share is told.
func TestRouting(t *testing.T) {
	needsSpeed(t)
	if slow > 1 {
		t.Skip("numbers only")
	}
	cache := t.TempDir()
	scores, err := evaluate.Record(cache, 60)
	if err != nil {
		t.Fatal(err)
	}
	params, err := evaluate.Calibrate(scores, evaluate.Start, 0.01)
	if err != nil {
		t.Fatal(err)
	}
	off := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 8, Slots: 4})
	on := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 8, Slots: 4, Gate: params})
	texts := prompts(t, off, 80, "")
	want, got := serve(t, off, texts, nil), serve(t, on, texts, nil)
	same := 0
	for i := range want {
		if got[i] == want[i] {
			same++
		}
	}
	a, b := taken(t, off), taken(t, on)
	t.Logf("%d of %d answers are the same; imbalance of shards %.3f without and %.3f with routing, distortion %.3f",
		same, len(want), unevenness(off, a), unevenness(on, b), b.Distortion())
	if a.Distortion() != 0 || !(b.Distortion() > 0.001) || unevenness(on, b) >= unevenness(off, a) {
		t.Errorf("distortion %v and %v, imbalance %v and %v", a.Distortion(), b.Distortion(), unevenness(off, a), unevenness(on, b))
	}
	if same*10 < len(want)*7 {
		t.Errorf("only %d of %d answers are the same", same, len(want))
	}
	if len(on.Experts().Routing) != 6 || off.Experts().Routing != nil {
		t.Error("whether routing is on")
	}
	answer(t, on, texts[0]) // and empties its sequence
	if r := on.TakeRerouted(0); r != (engine.Rerouted{}) {
		t.Errorf("an empty sequence has %+v", r)
	}
	enginetest.Greedy(t, on, 0, texts[0], 1)
	enginetest.Greedy(t, off, 0, texts[0], 1)
	if r := on.TakeRerouted(0); r.Choices != 6*len(texts[0]) || r.Changed == 0 || !(r.Lost > 0) {
		t.Errorf("%d tokens in 6 layers: %+v", len(texts[0]), r)
	}
	if again, never := on.TakeRerouted(0), off.TakeRerouted(0); again != never || never != (engine.Rerouted{}) {
		t.Errorf("taken again %+v, without routing %+v", again, never)
	}
}

func taken(t *testing.T, r *moe.Runner) load.Window {
	t.Helper()
	w, err := r.TakeWindow(load.Decode)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// unevenness is the mean over layers of max/mean of what shards served.
func unevenness(r *moe.Runner, w load.Window) float64 {
	sum := 0.0
	for l, row := range w.Served {
		sum += r.Placement().Imbalance(l, row)
	}
	return sum / float64(len(w.Served))
}
