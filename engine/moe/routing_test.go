package moe_test

import (
	"bytes"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/models/heldout"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/experts/load"
)

// spec is hub-cloud's gate.
var spec = gate.Spec{Experts: 16, TopK: 2, Normalise: true}

// calibrate finds parameters per layer that lose at most a share of the top-k's
// score mass on calibration prompts.
func calibrate(t *testing.T, scores [][][]float32, budget float64) []gate.Params {
	t.Helper()
	out := make([]gate.Params, len(scores))
	for l := range out {
		p, _, err := gate.Calibrate(spec, gate.Params{EpsHigh: 0.9, Pool: 6}, scores[l], nil, budget)
		if err != nil {
			t.Fatal(err)
		}
		out[l] = p
	}
	return out
}

// record serves prompts and keeps every n-th token's gate scores, by layer.
func record(t *testing.T, cache string, n int) [][][]float32 {
	out, seen := make([][][]float32, 6), 0
	r := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 8, Scores: func(l int, scores []float32) {
		if l == 0 {
			seen++
		}
		if seen%n == 0 {
			out[l] = append(out[l], slices.Clone(scores))
		}
	}})
	serve(t, r, prompts(t, r, 60, ""), nil)
	return out
}

// TestRouting turns LASER-style routing on: choices change, load evens out, the
// model still works, and each request's share is logged.
func TestRouting(t *testing.T) {
	needsSpeed(t)
	var log bytes.Buffer
	cache := t.TempDir()
	off := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 8, Slots: 4})
	on := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 8, Slots: 4, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Gate: calibrate(t, record(t, cache, 5), 0.01)})
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

// TestRoutingTable prints accuracy against imbalance for budgets of score mass:
// on all held-out prompts with WEIR_SOAK=1, else on every twentieth. Without
// routing the accuracy must be the model card's.
func TestRoutingTable(t *testing.T) {
	needsSpeed(t)
	if slow > 1 {
		t.Skip("numbers only")
	}
	examples, err := heldout.Test()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("WEIR_SOAK") == "" {
		examples = every(examples, 20)
	}
	cache := t.TempDir()
	scores := record(t, cache, 5)
	var without []bool
	for _, budget := range []float64{0, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03} {
		o := moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 8, Slots: 4}
		if budget > 0 {
			o.Gate = calibrate(t, scores, budget)
		}
		r := open(t, o)
		right := grade(t, r, examples)
		if budget == 0 {
			without = right
			if got := share(right); got < 0.96 {
				t.Errorf("accuracy %.3f without routing, the model card says 0.980", got)
			}
		}
		w := taken(t, r)
		t.Logf("mass budget %5.2f %%: accuracy %.1f %% (%+.1f points), imbalance of shards %.3f, distortion %.3f",
			100*budget, 100*share(right), 100*(share(right)-share(without)), unevenness(r, w), w.Distortion())
	}
}

func every(examples []models.Example, n int) (out []models.Example) {
	for i := 0; i < len(examples); i += n {
		out = append(out, examples[i])
	}
	return out
}

// grade answers examples and tells which answers are right.
func grade(t *testing.T, r *moe.Runner, examples []models.Example) []bool {
	t.Helper()
	var texts [][]engine.Token
	for _, e := range examples {
		texts = append(texts, promptOf(t, r, e.Prompt))
	}
	right := make([]bool, len(examples))
	for i, answer := range serve(t, r, texts, nil) {
		right[i] = answer == examples[i].Answer
	}
	return right
}

func share(right []bool) float64 {
	n := 0
	for _, ok := range right {
		if ok {
			n++
		}
	}
	return float64(n) / float64(len(right))
}
