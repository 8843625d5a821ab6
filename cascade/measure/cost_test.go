package measure

import (
	"math"
	"testing"
)

// Four requests: the first to escalate costs 6 of the cloud's 10 dollars.
func dear(priority []float64) CostCurve {
	return NewCostCurve(Rank(priority), []float64{0, 0, 1, 1}, []float64{1, 1, 1, 1},
		[]float64{.4, .4, .4, .4}, []float64{6, 2, 1, 1})
}

func TestCostCurveByHand(t *testing.T) {
	c := dear([]float64{4, 3, 2, 1})
	edge, cloud := c.Ends()
	near(t, "edge's cost", edge.Cost, .4, 1e-12)
	near(t, "cloud's cost", cloud.Cost, 2.5, 1e-12)
	// Points (.4, .5), (1.9, .75), (2.4, 1): the hull is the line from the first
	// to the last, then flat: (2 x .75 + .1 x 1) / 2.1.
	near(t, "AIQ", c.AIQ(), (2*.75+.1)/2.1, 1e-12)
	// The cheap one first: (.4, .5), (.9, .75), (2.4, 1) is its own hull.
	cheap := dear([]float64{3, 4, 2, 1})
	near(t, "AIQ, cheap first", cheap.AIQ(), (.5*.625+1.5*.875+.1)/2.1, 1e-12)
	free := NewCostCurve(Rank([]float64{4, 3, 2, 1}), []float64{0, 0, 1, 1}, []float64{1, 1, 1, 1}, nil, []float64{6, 2, 1, 1})
	near(t, "AIQ, free edge", free.AIQ(), (2*.75+.5)/2.5, 1e-12)
}

// CQ-AUC follows the curve itself: dear requests first buy less.
func TestAffordableTakesEachRowsCost(t *testing.T) {
	first, last := dear([]float64{4, 3, 2, 1}), dear([]float64{3, 4, 2, 1})
	// By hand, the area under the points of TestCostCurveByHand without a hull;
	// 201 budgets are within .002 of the integral.
	near(t, "dear first", first.Affordable(first), (1.5*.625+.5*.875+.1)/2.1, .002)
	near(t, "cheap first", last.Affordable(last), (.5*.625+1.5*.875+.1)/2.1, .002)
	// A rate that was chosen elsewhere is judged here.
	flat := NewCostCurve(Rank([]float64{4, 3, 2, 1}), []float64{1, 1, 1, 1}, []float64{0, 0, 0, 0},
		[]float64{.4, .4, .4, .4}, []float64{6, 2, 1, 1})
	near(t, "chosen elsewhere", first.Affordable(flat), .5, 1e-12)
	none := NewCostCurve(Rank([]float64{1}), []float64{0}, []float64{1}, []float64{3}, []float64{2})
	if !math.IsNaN(none.Affordable(none)) || !math.IsNaN(none.AIQ()) {
		t.Error("a cloud that is cheaper than the edge has a curve of costs")
	}
}

func TestHull(t *testing.T) {
	got := Hull([]Point{{3, .6}, {0, .5}, {1, .5}, {2, .9}, {1, .6}, {4, 1}, {5, .2}})
	want := []Point{{0, .5}, {2, .9}, {4, 1}}
	if len(got) != len(want) {
		t.Fatalf("hull %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("point %d is %v, want %v", i, got[i], want[i])
		}
	}
}

func TestIBCLift(t *testing.T) {
	edge, cloud := Point{1, .5}, Point{11, .9}
	for _, c := range []struct {
		p    Point
		want float64
	}{
		{Point{3, .66}, 1}, // .08 a dollar against .04
		{Point{6, .7}, 0},
		{Point{6, .6}, -.5},
		{Point{6, .4}, -1.5},
		{edge, math.NaN()},
	} {
		if got := IBCLift(c.p, edge, cloud); !(math.Abs(got-c.want) < 1e-12) && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("lift of %v is %v, want %v", c.p, got, c.want)
		}
	}
	if got := IBCLift(Point{3, .6}, edge, Point{11, .5}); !math.IsNaN(got) {
		t.Errorf("lift %v without a gap", got)
	}
}
