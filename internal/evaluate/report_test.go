package evaluate

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade/replay"
	"github.com/weirhq/weir/engine/models"
)

// rows of four prompts: the edge is right on the two confident ones, the cloud
// on all but the second.
func sample() ([]models.Example, []row) {
	lines := []models.Example{{Task: "T1"}, {Task: "T1"}, {Task: "T2"}, {Task: "T2"}}
	e := func(ok bool, conf float64) outcome {
		return outcome{correct: ok, confidence: conf, ttft: time.Millisecond}
	}
	c := func(ok bool) outcome { return outcome{correct: ok, escalated: true, confidence: -1} }
	return lines, []row{
		{e(true, .9), c(true), e(true, .9)},
		{e(true, .8), c(false), e(true, .8)},
		{e(false, .3), c(true), c(true)},
		{e(false, .2), c(true), e(false, .2)},
	}
}

func TestReport(t *testing.T) {
	r := report(sample())
	if got := r.Modes["edge-only"].Accuracy; got != 0.5 {
		t.Errorf("edge-only accuracy %v, want 0.5", got)
	}
	if got := r.Modes["auto"]; got.Accuracy != 0.75 || got.Escalated != 0.25 || got.Tasks["T2"] != 0.5 {
		t.Errorf("auto %+v", got)
	}
	if r.GapRecovered != 1 { // (3-2)/(3-2)
		t.Errorf("gap recovered %v, want 1", r.GapRecovered)
	}
	// At most 40 % of four rows is one row: the least confident.
	if h := r.Hindsight; h.Accuracy != 0.75 || h.Escalated != 0.25 || math.Abs(h.Threshold-0.25) > 1e-9 {
		t.Errorf("hindsight %+v", h)
	}
	// Every row sits alone in its bin: (.1 + .2 + .3 + .2) / 4.
	if math.Abs(r.ECE-0.2) > 1e-9 {
		t.Errorf("ECE %v, want 0.2", r.ECE)
	}
}

func TestRows(t *testing.T) {
	var b strings.Builder
	if err := report(sample()).WriteRows(&b); err != nil {
		t.Fatal(err)
	}
	d, err := replay.Read(strings.NewReader(b.String()), "rows", replay.Columns{})
	if err != nil || len(d.Records) != 4 {
		t.Fatalf("%v: %s", err, b.String())
	}
	if r := d.Records[1]; r.Edge != 1 || r.Cloud != 0 || r.Signals[replay.SignalConfidence] != .8 || r.Subject != "T1" || r.CloudMS != 0 {
		t.Errorf("%+v", r)
	}
}

func TestHindsightNeverPartsEqualConfidences(t *testing.T) {
	rows := make([]row, 10)
	for i := range rows {
		rows[i] = row{{confidence: .5}, {correct: true}, {}}
	}
	if h := bestThreshold(rows); h.Accuracy != 0 {
		t.Errorf("%+v: ten equal confidences cannot be parted at 40 %%", h)
	}
}

func TestWilson(t *testing.T) {
	got := wilson(781, 1000)
	if math.Abs(got[0]-0.7543) > 1e-3 || math.Abs(got[1]-0.8055) > 1e-3 {
		t.Errorf("wilson(781, 1000) = %v", got)
	}
}

func TestSpread(t *testing.T) {
	lines := make([]models.Example, 10)
	for i := range lines {
		lines[i].Sub = string(rune('a' + i))
	}
	if got := spread(lines, 5); got[0].Sub != "a" || got[4].Sub != "i" || len(got) != 5 {
		t.Errorf("got %v", got)
	}
}

func TestShuffleIsAlwaysTheSame(t *testing.T) {
	var a, b []models.Example
	for i := range 50 {
		a, b = append(a, models.Example{Sub: string(rune('a' + i))}), append(b, models.Example{Sub: string(rune('a' + i))})
	}
	sorted := slices.Clone(a)
	shuffle(a)
	shuffle(b)
	moved := 0
	for i := range a {
		if a[i].Sub != b[i].Sub {
			t.Fatalf("line %d differs between two shuffles", i)
		}
		moved += bit(a[i].Sub != sorted[i].Sub)
	}
	if moved < 40 {
		t.Errorf("only %d of 50 lines moved", moved)
	}
}
