package learn

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/verifier"
)

// teach gives a cell n labels whose votes tell as much as told says: 1 all,
// 0 nothing.
func teach(t *Table, n int, told float64, rng *rand.Rand) {
	for range n {
		edge, yes := float64(rng.IntN(2)), rng.IntN(4)
		if rng.Float64() < told {
			yes = int(edge)*2 + rng.IntN(2)
		}
		t.Observe(Outcome{Cell: "c", X: []float64{1}, Edge: edge, Cloud: 1, CloudKnown: true, Propensity: 1, Votes: &verifier.Votes{Yes: yes, Of: 3}})
	}
}

// Labels with votes make a table, which is usable only once it has shown that it
// finds the wrong answers, and is remembered.
func TestVotesAreLearned(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	table, noise := NewTable(DefaultOptions(), "fp", cascade.FeatureProduct), NewTable(DefaultOptions(), "fp", cascade.FeatureProduct)
	if v := table.View("c"); v.Verifier != nil || v.VerifierGrade != GradeUnknown {
		t.Errorf("without labels %+v", v)
	}
	teach(table, 150, 1, rng)
	if v := table.View("c"); v.Verifier == nil || v.VerifierGrade != GradeUnknown {
		t.Errorf("150 labels: %s", v.VerifierGrade)
	}
	teach(table, 150, 1, rng)
	teach(noise, 300, 0, rng)
	v := table.View("c")
	if e, _ := v.Verifier.Judge(.5, 1, 0); v.VerifierGrade != GradeUsable || e > .1 {
		t.Errorf("votes that tell are %s, and leave %v", v.VerifierGrade, e)
	}
	if g := noise.View("c").VerifierGrade; g == GradeUsable {
		t.Error("noise is usable")
	}
	var snap bytes.Buffer
	if err := table.Snapshot(&snap); err != nil {
		t.Fatal(err)
	}
	old := strings.Replace(snap.String(), `"prompt":1`, `"prompt":99`, 1)
	back, err := Restore(&snap, DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	if w := back.View("c"); *w.Verifier != *v.Verifier || w.VerifierGrade != GradeUsable {
		t.Errorf("restored: %s", w.VerifierGrade)
	}
	if back, err = Restore(strings.NewReader(old), DefaultOptions()); err != nil || back.View("c").Verifier != nil || back.View("c").Effective == 0 {
		t.Errorf("a snapshot with votes on another question: %v", err)
	}
	if _, err = Restore(strings.NewReader(`{"version":2,"features":["product"],"prior":[0,1],"cells":[{"name":"c"}]}`), DefaultOptions()); err != nil {
		t.Errorf("an old snapshot: %v", err)
	}
	table.Replace("other")
	if v := table.View("c"); v.Verifier != nil {
		t.Error("another model keeps the votes of the first")
	}
}

// A shipped table is what a cell's own labels add to; votes among another number
// of samples make a table of their own; votes that cannot be are no votes.
func TestShippedVotes(t *testing.T) {
	ship := func(samples int) *Table {
		v := verifier.New(samples)
		for i := range 300 {
			v.Observe(verifier.State(i%2), samples*(1-i%2), 1)
		}
		table := NewTable(DefaultOptions(), "fp", cascade.FeatureProduct)
		table.Ship(&cascade.Calibration{Fingerprint: "fp", Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}, Verifier: v})
		return table
	}
	rng := rand.New(rand.NewPCG(1, 1))
	table := ship(3)
	if v := table.View("unseen"); v.VerifierGrade != GradeUsable {
		t.Errorf("shipped: %s", v.VerifierGrade)
	}
	teach(table, 50, 1, rng)
	if n := table.View("c").Verifier.Labels(); math.Abs(n-350) > 1 {
		t.Errorf("%v labels of 300 and 50", n)
	}
	other := ship(5)
	teach(other, 50, 1, rng)
	if v := other.View("c"); v.Verifier.Samples() != 3 || v.VerifierGrade != GradeUnknown {
		t.Errorf("another number of samples: %d, %s", v.Verifier.Samples(), v.VerifierGrade)
	}
	table.Observe(Outcome{Cell: "c", X: []float64{1}, Edge: 1, Cloud: 1, CloudKnown: true, Propensity: 1, Votes: &verifier.Votes{Yes: 2, Of: 3, Sampled: true}})
	if v := table.View("c"); v.Verifier.Labels() > 1.1 || !v.Verifier.Reads(verifier.Votes{Of: 3, Sampled: true}) || v.VerifierGrade != GradeUnknown {
		t.Errorf("votes of samples among those of probabilities: %v labels, %s", v.Verifier.Labels(), v.VerifierGrade)
	}
	for _, bad := range []verifier.Votes{{Yes: 1}, {Yes: 4, Of: 3}, {Yes: -1, Of: 3}, {Yes: 1, Of: 11}} {
		other.Observe(Outcome{Cell: "new", X: []float64{1}, Edge: 1, Cloud: 1, CloudKnown: true, Propensity: 1, Votes: &bad})
		if v := other.View("new"); v.Verifier.Samples() != 5 {
			t.Errorf("%+v: %+v", bad, v.Verifier)
		}
	}
}
