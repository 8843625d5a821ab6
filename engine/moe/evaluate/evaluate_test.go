package evaluate

import (
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine/models/heldout"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/internal/cli"
)

// needsSpeed skips a test that would take minutes with plain kernels, unless
// WEIR_SOAK=1 asks for everything.
func needsSpeed(t *testing.T) {
	t.Helper()
	if !moe.Fast() && os.Getenv("WEIR_SOAK") == "" {
		t.Skip("slow without SIMD: build with GOEXPERIMENT=simd, or set WEIR_SOAK=1")
	}
}

// TestLive changes the topic of traffic: the imbalance rises, the loop decides
// at most 3 windows later, and 3 windows after that the imbalance is below
// max(1.10, 1.03 times the lower bound). No request fails and no token changes.
func TestLive(t *testing.T) {
	needsSpeed(t)
	var log strings.Builder
	r, err := Live(t.Context(), LiveOptions{CacheDir: t.TempDir(), Every: 8 * slow, Seen: func(w LiveWindow) { printWindow(&log, w) }})
	if err != nil {
		t.Fatal(err)
	}
	r.Print(&log)
	t.Log(log.String())
	if r.Shifted <= r.Settled || r.Shifted <= 1.10 {
		t.Errorf("imbalance %.3f before and %.3f after the topic changed: it should rise", r.Settled, r.Shifted)
	}
	if r.Decided == 0 {
		t.Fatal("no decision within 3 windows after the topic changed")
	}
	if r.Final >= r.Limit() {
		t.Errorf("imbalance %.3f 3 windows after the decision, want below %.3f", r.Final, r.Limit())
	}
	if r.Changed > 0 || r.Failed != 0 || r.Answers == 0 || r.Moves == 0 || r.Copied == 0 {
		t.Errorf("%d of %d answers changed, %d failed, %d moves, %d bytes copied", r.Changed, r.Answers, r.Failed, r.Moves, r.Copied)
	}
	if svg := string(r.Chart().SVG()); strings.Count(svg, "<circle") != len(r.Windows) || !strings.Contains(svg, "topic changes") {
		t.Errorf("picture %.200s", svg)
	}
}

// TestRoutingTable holds accuracy against imbalance: on all held-out prompts
// with WEIR_SOAK=1, else a few settings on every twentieth. Without routing the
// accuracy must be the model card's.
func TestRoutingTable(t *testing.T) {
	needsSpeed(t)
	if slow > 1 {
		t.Skip("numbers only")
	}
	examples, err := heldout.Test()
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	settings, err := Settings(cache)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("WEIR_SOAK") == "" {
		examples, settings = Every(examples, 20, ""), settings[:2]
	}
	var log strings.Builder
	rows, err := Routing(t.Context(), cache, examples, settings, func(r Routed) { printRouted(&log, r) })
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + log.String())
	if rows[0].Accuracy < 0.96 || rows[0].Distortion != 0 || rows[0].Points != 0 {
		t.Errorf("without routing: %+v", rows[0])
	}
	if rows[1].Distortion <= 0 || rows[1].Low > rows[1].Points || rows[1].High < rows[1].Points {
		t.Errorf("with routing: distortion %v, %v points in %v to %v", rows[1].Distortion, rows[1].Points, rows[1].Low, rows[1].High)
	}
	if len(examples) == 1000 && rows[1].Points < -0.5 {
		t.Errorf("the recommended setting loses %.2f points, want at most 0.5", -rows[1].Points)
	}
	if svg := string(RoutingChart(rows[:2]).SVG()); strings.Count(svg, "<circle") != 2 {
		t.Errorf("picture %.200s", svg)
	}
}

func TestPaired(t *testing.T) {
	a, b := make([]bool, 1000), make([]bool, 1000)
	for i := range a {
		a[i], b[i] = i < 900, i < 880 || i >= 990 // 20 lost, 10 won
	}
	d, low, high := paired(a, b)
	if math.Abs(d+1) > 1e-9 || math.Abs(low+2.07) > 0.01 || math.Abs(high-0.07) > 0.01 {
		t.Errorf("%v in %v to %v", d, low, high)
	}
	if d, low, high = paired(a, a); d != 0 || low != 0 || high != 0 {
		t.Errorf("the same answers: %v in %v to %v", d, low, high)
	}
}

// TestCalibrate keeps to its budget, and uses it.
func TestCalibrate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	scores := [][][]float32{make([][]float32, 200)}
	for i := range scores[0] {
		for range spec.Experts {
			scores[0][i] = append(scores[0][i], (1+rng.Float32())/24)
		}
	}
	g, err := Calibrate(scores, Start, 0.05)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := gate.Measure(spec, g[0], scores[0], nil)
	if err != nil || rep.Lost > 0.05 || rep.Changed == 0 {
		t.Errorf("tau %v loses %v and changes %v, %v", g[0].Tau, rep.Lost, rep.Changed, err)
	}
}

func TestCompare(t *testing.T) {
	cache := t.TempDir()
	open := func() *moe.Runner {
		r, err := moe.Load(moe.Options{Name: "hub-edge", CacheDir: cache, MaxSeqs: 2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	p, err := Compare(open(), open(), 2)
	if err != nil || !(p.Own > 0 && p.Other > 0 && p.Ratio > 0) {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestCommandMistakes(t *testing.T) {
	for _, line := range []string{"demo extra", "demo --window 10", "demo --threads 0", "demo --nonsense", "routing extra", "routing --every 0"} {
		var out, errs strings.Builder
		env := cli.Env{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
		code := cli.Main(t.Context(), env, Commands(), strings.Fields(line))
		if code != cli.ExitUsage || out.Len() > 0 || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%s: exit %d, %q, %q", line, code, out.String(), errs.String())
		}
	}
}
