package learn

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cascade"
)

func identity() cascade.Logistic { return cascade.Logistic{W: []float64{1}} }

// draw returns a feature and a label of a model that is right with probability
// sigmoid(.5 x - 1): overconfident for a prior that believes x.
func draw(rng *rand.Rand) (x, y float64) {
	x = 3 * rng.NormFloat64()
	if rng.Float64() < cascade.Sigmoid(.5*x-1) {
		y = 1
	}
	return x, y
}

func TestCellLearns(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	c := NewCell(DefaultOptions(), identity())
	if p := c.P([]float64{2}); p != cascade.Sigmoid(2) {
		t.Errorf("an empty cell says %v, its prior %v", p, cascade.Sigmoid(2))
	}
	for range 4000 {
		x, y := draw(rng)
		c.Observe([]float64{x}, y, 1, true)
	}
	for _, x := range []float64{-3, 0, 3} {
		if got, want := c.P([]float64{x}), cascade.Sigmoid(.5*x-1); math.Abs(got-want) > .06 {
			t.Errorf("P(%v) = %v, want %v", x, got, want)
		}
	}
}

// Labels seen only on doubtful answers mislead; propensities correct it.
func TestPropensitiesCorrectSelection(t *testing.T) {
	run := func(share float64) float64 {
		rng := rand.New(rand.NewPCG(2, 2))
		c := NewCell(DefaultOptions(), identity())
		gap := 0.0
		const n = 6000
		for i := range n {
			x := 3 * rng.NormFloat64()
			truth := .9 // flat, and much too optimistic a prior below 0
			if x > 0 {
				truth = .6
			}
			y := 0.0
			if rng.Float64() < truth {
				y = 1
			}
			if i >= n/2 && x > 0 {
				gap += c.P([]float64{x}) - truth
			}
			escalated := x < -1
			if escalated || rng.Float64() < share {
				c.Observe([]float64{x}, y, Propensity(escalated, share), true)
			}
		}
		return math.Abs(gap / (n / 4))
	}
	if without, with := run(0), run(.05); with > .7*without {
		t.Errorf("gap on kept answers %v with shadow labels, %v without", with, without)
	}
}

func TestIsotonicIsEarned(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	straight, stepped := NewCell(DefaultOptions(), identity()), NewCell(DefaultOptions(), identity())
	for range 8000 {
		x, y := draw(rng)
		straight.Observe([]float64{x}, y, 1, true)
		y = 0
		if x > 1 && x < 2 || rng.Float64() < .05 { // nothing a sigmoid can follow
			y = 1
		} else if x >= 2 && rng.Float64() < .99 {
			y = 1
		}
		stepped.Observe([]float64{x}, y, 1, true)
	}
	if straight.UsesIsotonic() {
		t.Error("isotonic regression took over where Platt is exact")
	}
	if !stepped.UsesIsotonic() {
		t.Error("isotonic regression did not take over a step")
	}
}

func TestIsotonicRises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 50).Draw(t, "n")
		x, y, w := make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range n {
			x[i] = float64(rapid.IntRange(0, 20).Draw(t, "x"))
			y[i] = float64(rapid.IntRange(0, 1).Draw(t, "y"))
			w[i] = float64(rapid.IntRange(1, 5).Draw(t, "w"))
		}
		f := FitIsotonic(x, y, w)
		last := -1.0
		for v := -1.0; v < 22; v += .5 {
			p := f.At(v)
			if p < last-1e-12 || !(p > 0 && p < 1) {
				t.Fatalf("P(%v) = %v after %v", v, p, last)
			}
			last = p
		}
	})
}

func TestQuality(t *testing.T) {
	var q Quality
	if got := q.Mean(.8); got != .8 {
		t.Errorf("without labels the mean is %v, want the prior", got)
	}
	for range 20 {
		q.Observe(0, 1)
	}
	if got := q.Mean(.8); math.Abs(got-.4) > .01 {
		t.Errorf("20 wrong answers give %v, want .4", got)
	}
}

func TestViability(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	sample := func(shift float64, n int) ([]float64, []bool) {
		g, h := make([]float64, n), make([]bool, n)
		for i := range n {
			h[i] = rng.Float64() < .3
			g[i] = rng.NormFloat64()
			if h[i] {
				g[i] += shift
			}
		}
		return g, h
	}
	for _, tt := range []struct {
		shift float64
		n     int
		want  Grade
	}{{1, 1000, GradeUsable}, {.3, 3000, GradeWeak}, {0, 1000, GradeUnusable}, {-1, 1000, GradeUnusable}, {1, 30, GradeUnknown}} {
		g, h := sample(tt.shift, tt.n)
		if got, a, low := Viability(g, h, nil); got != tt.want {
			t.Errorf("shift %v of %d items is %s (AUROC %v, lower %v), want %s", tt.shift, tt.n, got, a, low, tt.want)
		}
	}
}

func TestShadow(t *testing.T) {
	s := NewShadow()
	if got := s.Share(0); got != s.Start {
		t.Errorf("a new cell labels %v", got)
	}
	if got := s.Share(1000); got != s.Base {
		t.Errorf("a known cell labels %v", got)
	}
	s.Drifted()
	for range s.AlarmFor {
		if got := s.Share(1000); got != s.Alarm || !s.Alarmed() {
			t.Fatalf("after an alarm %v", got)
		}
		s.Pass()
	}
	if got := s.Share(1000); got != s.Base {
		t.Errorf("the alarm does not end: %v", got)
	}
}

func newTable() *Table { return NewTable(DefaultOptions(), "a", cascade.FeatureProduct) }

func feed(tb *Table, cell string, n int, rng *rand.Rand) {
	for range n {
		x, y := draw(rng)
		tb.Observe(Outcome{Cell: cell, X: []float64{x}, Edge: y, Cloud: 1, CloudKnown: true, Propensity: 1})
	}
}

func TestTableEvictsTheOldest(t *testing.T) {
	tb, rng := newTable(), rand.New(rand.NewPCG(5, 5))
	feed(tb, "first", 1, rng)
	for i := range MaxCells {
		feed(tb, strings.Repeat("x", i+1), 1, rng)
	}
	if tb.Len() != MaxCells {
		t.Errorf("%d cells", tb.Len())
	}
	if v := tb.View("first"); v.Grade != GradeUnknown || v.Effective != 0 {
		t.Errorf("the evicted cell still has %+v", v)
	}
}

func TestSnapshotRestores(t *testing.T) {
	tb, rng := newTable(), rand.New(rand.NewPCG(6, 6))
	feed(tb, "a", 600, rng)
	feed(tb, "b", 50, rng)
	var buf bytes.Buffer
	if err := tb.Snapshot(&buf); err != nil {
		t.Fatal(err)
	}
	data := buf.String()
	back, err := Restore(strings.NewReader(data), DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	// Both refit on the same labels.
	tb.cells["a"].Refit()
	a, b := tb.View("a"), back.View("a")
	if math.Abs(a.Calibration.Bias-b.Calibration.Bias) > 1e-6 || a.Grade != b.Grade || a.CloudQuality != b.CloudQuality {
		t.Errorf("restored %+v, want %+v", b, a)
	}
	other, err := Restore(strings.NewReader(data), DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	other.Replace("new weights")
	if math.Abs(other.View("b").Calibration.Bias) >= math.Abs(back.View("b").Calibration.Bias) {
		t.Error("labels of another model keep their full weight")
	}
	for _, bad := range []string{"", "{}", `{"version":9}`, `{"version":2,"features":["x"],"prior":[0,1]}`,
		`{"version":2,"features":["product"],"prior":[0,1],"cells":[{"name":"c","labels":[[1]]}]}`} {
		if _, err := Restore(strings.NewReader(bad), DefaultOptions()); !errors.Is(err, ErrState) {
			t.Errorf("Restore(%q): %v", bad, err)
		}
	}
}

// Nodes that share a bias find it together, and a broken one cannot spoil it.
func TestMergePrior(t *testing.T) {
	prior, rng := identity(), rand.New(rand.NewPCG(7, 7))
	nodes := []*Table{newTable(), newTable(), newTable()}
	for _, n := range nodes {
		feed(n, "c", 400, rng)
	}
	start := prior
	for range 8 {
		var all []Report
		for _, n := range nodes {
			n.SetPrior(prior)
			all = append(all, n.Report())
		}
		var err error
		if prior, err = MergePrior(start, 1, all); err != nil {
			t.Fatal(err)
		}
	}
	if math.Abs(prior.W[0]-.5) > .08 || math.Abs(prior.Bias+1) > .15 {
		t.Errorf("merged prior %+v, want weight .5 and bias -1", prior)
	}
}

// A node can shift its tenant's prior by a bounded amount and no more.
func TestMergePriorBoundsNodes(t *testing.T) {
	good := func() Report {
		return Report{Fingerprint: "a", Features: []cascade.Feature{cascade.FeatureProduct}, Base: []float64{0, 1}, At: []float64{0, 1},
			Cells: []Stats{{Cell: "c", N: 9, Sum: 9, Gradient: []float64{1, 2}, Hessian: []float64{2, 1, 1, 2}, Helps: Quality{1, 9}}}}
	}
	r := good()
	if err := r.Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Report){
		"shape":      func(r *Report) { r.At = []float64{0} },
		"feature":    func(r *Report) { r.Features[0] = "x" },
		"gradient":   func(r *Report) { r.Cells[0].Gradient[0] = 1e9 },
		"NaN":        func(r *Report) { r.Cells[0].Gradient[0] = math.NaN() },
		"hessian":    func(r *Report) { r.Cells[0].Hessian[0] = -1 },
		"asymmetric": func(r *Report) { r.Cells[0].Hessian[1] = 1.5 },
		"weight":     func(r *Report) { r.Cells[0].Sum = 1e6 },
		"quality":    func(r *Report) { r.Cells[0].Helps = Quality{2, 1} },
		"prior":      func(r *Report) { r.At[1] = math.Inf(1) },
	} {
		r := good()
		spoil(&r)
		if _, err := MergePrior(identity(), 1, []Report{r}); !errors.Is(err, ErrStats) {
			t.Errorf("%s: %v", name, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		r := good()
		g := rapid.Float64Range(-9*maxFeature, 9*maxFeature)
		r.Cells[0].Gradient = []float64{g.Draw(t, "g0"), g.Draw(t, "g1")}
		r.Cells[0].Hessian = []float64{0, 0, 0, 0}
		got, err := MergePrior(identity(), 1, []Report{r})
		if err != nil || math.Abs(got.Bias) > priorReach || math.Abs(got.W[0]-1) > priorReach {
			t.Fatalf("%+v %v", got, err)
		}
	})
}

func TestTableNoticesDrift(t *testing.T) {
	tb, rng := newTable(), rand.New(rand.NewPCG(8, 8))
	feed(tb, "c", 1500, rng) // the references are complete
	for i := range 1000 {
		x, _ := draw(rng)
		if d := tb.Observe(Outcome{Cell: "c", X: []float64{x}, Edge: 0, Propensity: 1}); d != "" {
			if v := tb.View("c"); v.Shadow != .20 || !v.Alarmed || v.Alarms != 1 {
				t.Errorf("after drift the view is %+v", v)
			}
			return
		}
		if i == 999 {
			t.Error("an edge that is always wrong goes unnoticed")
		}
	}
}

func FuzzRestore(f *testing.F) {
	tb := newTable()
	feed(tb, "c", 5, rand.New(rand.NewPCG(9, 9)))
	var buf bytes.Buffer
	if err := tb.Snapshot(&buf); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte(`{"version":2,"features":["product"],"prior":[0,1],"cells":[{"labels":[[1e308,1e308,1e308]]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tb, err := Restore(bytes.NewReader(data), DefaultOptions())
		if err == nil {
			tb.View("c")
		}
	})
}
