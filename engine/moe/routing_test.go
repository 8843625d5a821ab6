package moe_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/engine/moe/evaluate"
	"github.com/weirhq/weir/experts/load"
)

// TestRouting turns LASER-style routing on: choices change, load evens out, the
// model still works, and each request's share is logged.
func TestRouting(t *testing.T) {
	needsSpeed(t)
	if slow > 1 {
		t.Skip("numbers only")
	}
	var log bytes.Buffer
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
	on := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 8, Slots: 4, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Gate: params})
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
	if lines := strings.Count(log.String(), "experts re-routed"); lines != len(texts) {
		t.Errorf("%d lines for %d requests", lines, len(texts))
	}
	if len(on.Experts().Routing) != 6 || off.Experts().Routing != nil || off.Routed(0) != (moe.Routed{}) {
		t.Error("whether routing is on")
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
