package verifier

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// telling is a verifier of three votes whose word is worth something: right
// answers get two or three, wrong ones none or one.
func telling() *Table {
	t := New(3)
	for i := range 100 {
		t.Observe(BothRight, 2+i%2, 1)
		t.Observe(OnlyCloud, i%2, 1)
		t.Observe(BothWrong, i%2, .5)
	}
	return t
}

// Votes move what is expected of the edge, and never beyond what is possible;
// without labels they move nothing.
func TestJudge(t *testing.T) {
	v := telling()
	yes, cloud := v.Judge(.6, .9, 3)
	no, _ := v.Judge(.6, .9, 0)
	if yes < .95 || no > .1 || cloud < .89 {
		t.Errorf("after yes %v (cloud %v), after no %v", yes, cloud, no)
	}
	if e, c := New(3).Judge(.6, .9, 3); e != .6 || c != .9 {
		t.Errorf("without labels %v %v", e, c)
	}
	if e, c := v.Judge(1, 1, 0); e != 1 || c != 1 {
		t.Errorf("what is certain moves: %v %v", e, c)
	}
}

// drawn is a table of any labels.
func drawn(t *rapid.T) *Table {
	v := NewFor(Votes{Of: rapid.IntRange(1, MostVotes).Draw(t, "votes"), Sampled: rapid.Bool().Draw(t, "sampled")})
	for range rapid.IntRange(0, 60).Draw(t, "labels") {
		v.Observe(State(rapid.IntRange(0, 3).Draw(t, "state")), rapid.IntRange(0, v.votes).Draw(t, "yes"), rapid.Float64Range(.5, 20).Draw(t, "weight"))
	}
	return v
}

// Whatever the labels and the votes, probabilities stay probabilities, and a
// table that is stored and read again judges alike to the bit.
func TestJudgeStaysPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawn(t)
		edge, cloud, yes := rapid.Float64Range(0, 1).Draw(t, "edge"), rapid.Float64Range(0, 1).Draw(t, "cloud"), rapid.IntRange(-2, 12).Draw(t, "votes")
		e, c := v.Judge(edge, cloud, yes)
		if !(e >= 0 && e <= 1 && c >= 0 && c <= 1) {
			t.Fatalf("%v %v", e, c)
		}
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var back Table
		if err := json.Unmarshal(raw, &back); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		raw, _ = json.Marshal(&back)
		var again Table
		if err := json.Unmarshal(raw, &again); err != nil || again != back {
			t.Fatalf("%v: %s", err, raw)
		}
	})
}

// Where every state gives the same votes they change nothing, to the bit.
func TestVotesThatTellNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := New(rapid.IntRange(1, MostVotes).Draw(t, "samples"))
		for o := range v.votes + 1 {
			n := rapid.Float64Range(0, 50).Draw(t, "labels")
			for s := range stateCount {
				v.Observe(s, o, n)
			}
		}
		edge, cloud := rapid.Float64Range(0, 1).Draw(t, "edge"), rapid.Float64Range(0, 1).Draw(t, "cloud")
		for yes := range v.votes + 1 {
			if e, c := v.Judge(edge, cloud, yes); e != edge || c != cloud {
				t.Fatalf("%d votes make %v %v of %v %v", yes, e, c, edge, cloud)
			}
		}
	})
}

// Where more votes speak for the edge in both of its states, more votes never
// make it look worse.
func TestMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := New(rapid.IntRange(1, MostVotes).Draw(t, "samples"))
		ratio := rapid.Float64Range(1, 2).Draw(t, "ratio")
		for o := range v.votes + 1 {
			right, wrong := 100*math.Pow(ratio, float64(o)), 100*math.Pow(ratio, -float64(o))
			v.Observe(BothRight, o, right)
			v.Observe(OnlyEdge, o, right)
			v.Observe(OnlyCloud, o, wrong)
			v.Observe(BothWrong, o, wrong)
		}
		edge, cloud := rapid.Float64Range(0, 1).Draw(t, "edge"), rapid.Float64Range(0, 1).Draw(t, "cloud")
		last := 0.0
		for yes := range v.votes + 1 {
			e, _ := v.Judge(edge, cloud, yes)
			if e < last-1e-12 {
				t.Fatalf("%d votes: %v after %v", yes, e, last)
			}
			last = e
		}
	})
}

// It learns what a threshold cannot: that no votes at all mean a question that
// nobody can answer.
func TestLearnsHopelessness(t *testing.T) {
	v := New(4)
	for range 100 { // no votes: nobody knows; few: the cloud does; many: fine
		v.Observe(StateOf(false, false), 0, 1)
		v.Observe(StateOf(false, true), 1, 1)
		v.Observe(StateOf(true, true), 4, 1)
		v.Observe(StateOf(true, false), 3, 1)
	}
	v.Observe(BothRight, 99, 1)
	for _, tt := range []struct {
		yes       int
		low, high float64 // of the gain
	}{{0, -.1, .1}, {1, .9, 1}, {3, -1, -.9}, {4, -.1, .1}} {
		if edge, cloud := v.Judge(.5, .5, tt.yes); cloud-edge < tt.low || cloud-edge > tt.high {
			t.Errorf("after %d votes edge %v, cloud %v", tt.yes, edge, cloud)
		}
	}
}

func TestBenefit(t *testing.T) {
	if a, low := telling().Benefit(); !(a >= .75 && a < .84 && low > .6) { // where both are wrong the votes are alike
		t.Errorf("a telling verifier: AUROC %v, at least %v", a, low)
	}
	if a, _ := New(3).Benefit(); !math.IsNaN(a) {
		t.Errorf("without labels %v", a)
	}
	few := New(3)
	for i := range 400 { // only 19 on which escalation helps
		s := BothRight
		if i < 19 {
			s = OnlyCloud
		}
		few.Observe(s, i%4, 1)
	}
	if a, _ := few.Benefit(); !math.IsNaN(a) {
		t.Errorf("with 19 labels of a kind %v", a)
	}
	heavy := New(3)
	for i := range 100 { // many weights, few labels
		heavy.Observe(State(i%2), 3-3*(i%2), 20)
	}
	if a, _ := heavy.Benefit(); !math.IsNaN(a) || math.Abs(heavy.Labels()-100) > 1e-9 {
		t.Errorf("with %v labels of weight 20: %v", heavy.Labels(), a)
	}
}

// Votes that know nothing are hardly ever called usable: pairs are ordered by the
// other labels.
func TestNoiseIsNotUsable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	usable := 0
	for range 200 {
		v := New(10)
		for range 250 {
			s := BothRight
			if rng.Float64() < .15 {
				s = OnlyCloud
			}
			v.Observe(s, rng.IntN(11), 1)
		}
		if _, low := v.Benefit(); low >= .6 {
			usable++
		}
	}
	if usable > 2 {
		t.Errorf("noise is usable in %d of 200", usable)
	}
}

// Older labels fade; a sum has the labels of both.
func TestAgeAndPlus(t *testing.T) {
	v := telling()
	n, w := v.Labels(), v.weight()
	v.Age(.5)
	if math.Abs(v.Labels()-n) > 1e-9 || math.Abs(v.weight()-w/2) > 1e-9 {
		t.Errorf("%v labels of weight %v", v.Labels(), v.weight())
	}
	sum := telling().Plus(v)
	if math.Abs(sum.weight()-1.5*w) > 1e-9 || math.Abs(v.weight()-w/2) > 1e-9 {
		t.Errorf("a sum of %v, a part of %v", sum.weight(), v.weight())
	}
	if e, _ := telling().Plus(New(3)).Judge(.6, .9, 3); e != first(telling().Judge(.6, .9, 3)) {
		t.Errorf("an empty table changes %v", e)
	}
}

func first(a, _ float64) float64 { return a }

func TestStored(t *testing.T) {
	raw, err := json.Marshal(telling())
	if err != nil {
		t.Fatal(err)
	}
	var back Table
	if err := json.Unmarshal(raw, &back); err != nil || !reflect.DeepEqual(&back, telling()) {
		t.Errorf("%v: %s", err, raw)
	}
	for _, bad := range []string{``, `{}`, `{"prompt":1,"votes":0,"counts":[]}`, `{"prompt":1,"votes":11,"counts":[[],[],[],[]]}`, `{"prompt":1,"votes":1,"counts":[[0,0],[0,0],[0,0]]}`,
		`{"prompt":1,"votes":1,"counts":[[0,0],[0,0],[0,0],[0]]}`, `{"prompt":1,"votes":1,"counts":[[0,0],[0,0],[0,0],[0,-1]]}`, `{"prompt":1,"votes":1,"counts":[[0,0],[0,0],[0,0],[0,0]],"x":1}`,
		`{"prompt":1,"votes":1,"counts":[[0,0],[0,0],[0,0],[0,0]]} x`, `{"prompt":2,"votes":1,"counts":[[0,0],[0,0],[0,0],[0,0]]}`, `{"prompt":1,"votes":1,"squares":-1,"counts":[[0,0],[0,0],[0,0],[0,0]]}`} {
		if err := new(Table).UnmarshalJSON([]byte(bad)); !errors.Is(err, ErrTable) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzTable(f *testing.F) {
	raw, _ := json.Marshal(telling())
	f.Add(raw)
	f.Add([]byte(`{"prompt":1,"votes":1,"counts":[[1e5,0],[0,0],[0,0],[0,0]],"squares":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var v Table
		if v.UnmarshalJSON(data) != nil {
			return
		}
		if e, c := v.Judge(.5, .5, 1); !(e >= 0 && e <= 1 && c >= 0 && c <= 1) {
			t.Errorf("%v %v", e, c)
		}
		v.Benefit()
	})
}

func BenchmarkJudge(b *testing.B) {
	v := telling()
	b.ReportAllocs()
	for b.Loop() {
		v.Judge(.6, .9, 1)
	}
}
