package evaluate

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/experts/load"
)

// Start is where Calibrate starts: tokens whose top-k carry nine tenths of all
// score mass are left alone, and no expert outside the best six is taken.
var Start = gate.Params{EpsHigh: 0.9, Pool: 6}

// spec is hub-cloud's gate.
var spec = gate.Spec{Experts: 16, TopK: 2, Normalise: true}

// Record serves every n-th calibration prompt with hub-cloud and returns the
// gate scores of every fifth token, [layer][token][expert].
func Record(cacheDir string, n int) ([][][]float32, error) {
	var out [][][]float32
	seen := 0
	r, err := moe.Load(moe.Options{Name: "hub-cloud", CacheDir: cacheDir, MaxSeqs: 8, Scores: func(l int, scores []float32) {
		if l == 0 {
			seen++
		}
		if l == len(out) {
			out = append(out, nil)
		}
		if seen%5 == 0 {
			out[l] = append(out[l], slices.Clone(scores))
		}
	}})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	prompts, err := Calibration(r, n, "")
	if err != nil {
		return nil, err
	}
	_, err = Serve(r, prompts, nil)
	return out, err
}

// Calibrate finds the parameters of each layer that give up at most the budget,
// a share of the top-k's score mass, on recorded scores.
func Calibrate(scores [][][]float32, start gate.Params, budget float64) ([]gate.Params, error) {
	out := make([]gate.Params, len(scores))
	for l := range out {
		var err error
		if out[l], _, err = gate.Calibrate(spec, start, scores[l], nil, budget); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Setting is one way to route, for a row of Routing's table.
type Setting struct {
	Group, Name string        // the picture joins a group's settings by a line
	Gate        []gate.Params // nil: as the model chooses
}

// Routed is what a setting did on all examples. Points are relative to the
// first setting, with a 95 % interval of the paired difference.
type Routed struct {
	Setting
	Right      int
	Accuracy   float64
	Points     float64
	Low, High  float64
	Imbalance  float64 // of shards, mean over layers and both phases
	Experts    float64 // highest over mean load of experts, the same way
	Distortion float64 // share of load that routing moved

	right []bool
}

// Routing answers the examples under each setting, with 4 shards of 4 slots:
// no expert has a replica, so that what evens out is routing's doing.
func Routing(ctx context.Context, cacheDir string, examples []models.Example, settings []Setting, seen func(Routed)) ([]Routed, error) {
	var out []Routed
	for _, s := range settings {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		r, err := route(cacheDir, examples, s)
		if err != nil {
			return out, fmt.Errorf("%s %s: %w", s.Group, s.Name, err)
		}
		base := r
		if len(out) > 0 {
			base = out[0]
		}
		r.Points, r.Low, r.High = paired(base.right, r.right)
		out = append(out, r)
		seen(r)
	}
	return out, nil
}

func route(cacheDir string, examples []models.Example, s Setting) (Routed, error) {
	out := Routed{Setting: s, right: make([]bool, len(examples))}
	r, err := moe.Load(moe.Options{Name: "hub-cloud", CacheDir: cacheDir, MaxSeqs: 8, Shards: 4, Slots: 4, Gate: s.Gate})
	if err != nil {
		return out, err
	}
	defer r.Close()
	prompts, err := Lay(r, examples)
	if err != nil {
		return out, err
	}
	answers, err := Serve(r, prompts, nil)
	if err != nil {
		return out, err
	}
	for i, a := range answers {
		if out.right[i] = a == examples[i].Answer; out.right[i] {
			out.Right++
		}
	}
	out.Accuracy = float64(out.Right) / float64(len(examples))
	return out, out.judge(r)
}

// judge takes the load of both phases from the runner.
func (r *Routed) judge(from *moe.Runner) error {
	var all load.Window
	for i, phase := range []load.Phase{load.Prefill, load.Decode} {
		w, err := from.TakeWindow(phase)
		if err != nil {
			return err
		}
		if i == 0 {
			all = w
			continue
		}
		if err := all.Demand.AddScaled(w.Demand, 1); err != nil {
			return err
		}
		if err := all.Served.AddScaled(w.Served, 1); err != nil {
			return err
		}
	}
	p := from.Placement()
	for l, row := range all.Served {
		r.Imbalance += p.Imbalance(l, row) / float64(len(all.Served))
		r.Experts += load.Imbalance(row) / float64(len(all.Served))
	}
	r.Distortion = all.Distortion()
	return nil
}

// paired is the difference of two shares of right answers to the same
// questions in points, with its 95 % interval (Wald, on the pairs that differ).
func paired(a, b []bool) (points, low, high float64) {
	won, lost := 0.0, 0.0
	for i := range a {
		switch {
		case b[i] && !a[i]:
			won++
		case a[i] && !b[i]:
			lost++
		}
	}
	n := float64(len(a))
	d := (won - lost) / n
	half := 1.96 * math.Sqrt((won+lost)/n-d*d) / math.Sqrt(n)
	return 100 * d, 100 * (d - half), 100 * (d + half)
}
