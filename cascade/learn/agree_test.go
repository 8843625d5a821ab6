package learn

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade"
)

func TestAgree(t *testing.T) {
	long := strings.Repeat("the quick brown fox jumps over the lazy dog ", 4)
	for _, tt := range []struct {
		edge, cloud string
		want        float64
	}{
		{"Paris.", " paris", 1},
		{"The answer is 42!", "the answer  is 42", 1},
		{"42", "-42", 0},
		{"5%", "5", 0},
		{"Paris", "London", 0},
		{"", "", 0},
		{"x", "", 0},
		{`{"b":1,"a":[2]}`, "{\"a\": [2],\n\"b\": 1}", 1},
		{`{"a":1}`, `{"a":2}`, 0},
		{long, long + "indeed", 2 * 36. / 73},
	} {
		if got := Agree(tt.edge, tt.cloud); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("Agree(%q, %q) = %v, want %v", tt.edge, tt.cloud, got, tt.want)
		}
	}
}

func FuzzAgree(f *testing.F) {
	f.Add("Paris.", "paris")
	f.Add(`{"a":1}`, "[1,2")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := Agree(a, b), Agree(b, a)
		if x != y || !(x >= 0 && x <= 1) {
			t.Fatalf("Agree is %v one way and %v the other", x, y)
		}
	})
}

// A shipped calibration is believed at once; without one a cell has to earn it.
func TestWhatIsBelieved(t *testing.T) {
	cal := cascade.Calibration{Version: 1, Bias: -1, Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: .5}}}
	shipped := newTable()
	shipped.Ship(&cal)
	if v := shipped.View("c"); !v.Calibrated || v.Calibration.Bias != -1 || v.Calibration.Terms[0].Weight != .5 {
		t.Errorf("shipped: %+v", v)
	}
	shipped.Replace("other weights")
	if v := shipped.View("c"); v.Calibrated || v.Calibration.Terms[0].Weight != 1 {
		t.Errorf("the calibration of another model is believed: %+v", v)
	}
	tb, rng := newTable(), rand.New(rand.NewPCG(1, 2))
	feed(tb, "c", 100, rng)
	if tb.View("c").Calibrated {
		t.Error("believed after 100 labels")
	}
	feed(tb, "c", 300, rng)
	v := tb.View("c")
	if !v.Calibrated || v.Grade != GradeUsable {
		t.Errorf("after 400 labels: %+v", v)
	}
	if err := v.Calibration.Validate(); err != nil {
		t.Error(err)
	}
	if n := len(tb.RiskItems("c")); n != 400 {
		t.Errorf("%d risk items", n)
	}
	if math.Abs(v.Helps-(1-v.EdgeQuality)) > .1 || !(v.Error < .2) {
		t.Errorf("helps %v, edge %v, error %v", v.Helps, v.EdgeQuality, v.Error)
	}
}

// The signal's own stream raises an alarm before any label is there.
func TestSignalDriftNeedsNoLabels(t *testing.T) {
	tb, rng := newTable(), rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		if d := tb.Pass("c", []float64{rng.NormFloat64()}); d != "" {
			t.Fatalf("false alarm of %s", d)
		}
	}
	for i := range 160 {
		if d := tb.Pass("c", []float64{rng.NormFloat64() - .7}); d == DriftSignal {
			return
		} else if i == 159 {
			t.Errorf("a shift of .7 sd goes unnoticed for 160 requests")
		}
	}
}
