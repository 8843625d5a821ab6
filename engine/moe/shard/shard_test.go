package shard_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/moe/kernel"
	"github.com/weirhq/weir/engine/moe/shard"
	"github.com/weirhq/weir/experts/plan"
)

const width, inner = 64, 96

func matrix(t *testing.T, rng *rand.Rand, rows, cols int) kernel.Matrix {
	t.Helper()
	w := make([]float32, rows*cols)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
	}
	raw, err := gguf.AppendFloats(nil, gguf.Q8_0, w)
	if err != nil {
		t.Fatal(err)
	}
	m, err := kernel.Pack(gguf.Q8_0, rows, cols, raw)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func experts(t *testing.T, layers, n int) [][]*shard.Expert {
	rng := rand.New(rand.NewPCG(1, 1))
	out := make([][]*shard.Expert, layers)
	for l := range out {
		for range n {
			out[l] = append(out[l], shard.NewExpert(matrix(t, rng, inner, width), matrix(t, rng, inner, width), matrix(t, rng, width, inner)))
		}
	}
	return out
}

// answers computes every expert of every layer from every home.
func answers(s *shard.Set) map[[3]int]float32 {
	x, scratch := kernel.NewInput(3, width), shard.NewScratch(width, inner)
	for i := range 3 {
		for c := range x.Row(i) {
			x.Row(i)[c] = float32(i+1) * float32(c%7-3)
		}
		x.Quantise(i)
	}
	out, dst := map[[3]int]float32{}, make([]float32, 3*width)
	m := s.Map()
	for l := range m.Placement.Layers {
		for e := range m.Placement.Experts {
			for _, h := range m.Homes(l, e) {
				h.Expert.Forward(dst, []int32{2, 0, 1}, x, []int32{0, 1, 2}, scratch)
				out[[3]int{l, e, h.Shard}] = dst[5] + dst[width] - dst[2*width+1]
			}
		}
	}
	return out
}

// TestApply moves everything around: each home computes what the first did.
func TestApply(t *testing.T) {
	fleet := plan.Uniform(4, 3)
	p := plan.Trivial(2, 8, fleet)
	s, err := shard.New(shard.Options{Experts: experts(t, 2, 8), Placement: p})
	if err != nil {
		t.Fatal(err)
	}
	want := map[[2]int]float32{}
	for k, v := range answers(s) {
		want[[2]int{k[0], k[1]}] = v
	}
	rng := rand.New(rand.NewPCG(2, 2))
	for round := range 5 {
		loads := make([][]float64, 2)
		for l := range loads {
			for range 8 {
				loads[l] = append(loads[l], 1+100*rng.Float64())
			}
		}
		r, err := plan.Solve(plan.Problem{Loads: loads, Fleet: fleet})
		if err != nil {
			t.Fatal(err)
		}
		old := s.Map()
		if err := s.Apply(context.Background(), uint64(round+1), old.Placement, r.Placement); err != nil {
			t.Fatal(err)
		}
		m := s.Map()
		if m.Generation != uint64(round+1) {
			t.Fatalf("generation %d after round %d", m.Generation, round)
		}
		got := answers(s)
		if len(got) != 2*fleet.Total() {
			t.Fatalf("%d homes, want %d", len(got), 2*fleet.Total())
		}
		for k, v := range got {
			if v != want[[2]int{k[0], k[1]}] {
				t.Fatalf("layer %d expert %d in shard %d computes %v, want %v", k[0], k[1], k[2], v, want[[2]int{k[0], k[1]}])
			}
		}
	}
	if s.Copied() == 0 {
		t.Error("nothing was copied")
	}
	for d, n := range s.Memory() {
		if n != s.Memory()[0] || n == 0 {
			t.Errorf("shard %d holds %d bytes", d, n)
		}
	}
}

// TestApplyFails checks that each failure leaves the old map in force.
func TestApplyFails(t *testing.T) {
	fleet := plan.Uniform(4, 3)
	p := plan.Trivial(1, 8, fleet)
	next := plan.Placement{Experts: 8, Fleet: fleet, Layers: [][]int{{7, 6, 5, 4, 3, 2, 1, 0, 7, 6, 5, 4}}}
	failure := errors.New("link is down")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	bad := next
	bad.Layers = [][]int{{7, 6, 5, 4, 3, 2, 1, 1, 7, 6, 5, 4}}
	calls := 0
	for name, c := range map[string]struct {
		ctx       context.Context
		old, next plan.Placement
		carry     func(dst, src []byte) error
		lose      int
		want      error
	}{
		"damage":    {old: p, next: next, want: shard.ErrDamaged, carry: func(dst, src []byte) error { copy(dst, src); calls++; dst[0] ^= byte(calls / 3); return nil }},
		"link":      {old: p, next: next, want: failure, carry: func(dst, src []byte) error { return failure }},
		"stale":     {old: next, next: p, want: shard.ErrStale},
		"invalid":   {old: p, next: bad, want: plan.ErrPlacement},
		"cancelled": {ctx: ctx, old: p, next: next, want: context.Canceled},
		"lost":      {old: p, next: next, lose: 3, want: shard.ErrLost},
	} {
		s, err := shard.New(shard.Options{Experts: experts(t, 1, 8), Placement: p, Copy: c.carry})
		if err != nil {
			t.Fatal(err)
		}
		if c.lose > 0 {
			if err := s.Lose(c.lose); err != nil {
				t.Fatal(err)
			}
		}
		if c.ctx == nil {
			c.ctx = context.Background()
		}
		before := s.Map()
		if err := s.Apply(c.ctx, 1, c.old, c.next); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if s.Map() != before {
			t.Errorf("%s: the map has changed", name)
		}
	}
}

func TestLose(t *testing.T) {
	p := plan.Trivial(1, 8, plan.Uniform(4, 3))
	s, err := shard.New(shard.Options{Experts: experts(t, 1, 8), Placement: p})
	if err != nil {
		t.Fatal(err)
	}
	if s.Lose(4) == nil || s.Lose(-1) == nil {
		t.Error("a shard that does not exist: no error")
	}
	if err := s.Lose(3); err != nil { // it holds 1, 2, 3
		t.Fatal(err)
	}
	if !s.Lost(3) || !slices.Equal(s.AllLost(), []int{3}) || s.Lost(0) {
		t.Error("which shard is lost")
	}
	for e := range 8 {
		homes := s.Map().Homes(0, e)
		if len(homes) == 0 {
			t.Errorf("expert %d has no home", e)
		}
		for _, h := range homes {
			if h.Shard == 3 {
				t.Errorf("expert %d has a home in the lost shard", e)
			}
		}
	}
}

// TestRestore loses the only copies of some experts: they are read anew, and
// what is read must be what was loaded.
func TestRestore(t *testing.T) {
	all := experts(t, 1, 4)
	fresh := experts(t, 1, 4) // the same weights in other memory
	from := plan.Trivial(1, 4, plan.Uniform(2, 3))
	from.Layers[0] = []int{0, 1, 2, 3, 0, 1}
	to := plan.Placement{Experts: 4, Fleet: plan.Fleet{Slots: []int{0, 4}}, Layers: [][]int{{3, 0, 1, 2}}}
	for name, c := range map[string]struct {
		reload func(layer, expert int) (*shard.Expert, error)
		want   error
	}{
		"read":   {func(l, e int) (*shard.Expert, error) { return fresh[l][e], nil }, nil},
		"other":  {func(l, e int) (*shard.Expert, error) { return fresh[l][0], nil }, shard.ErrDamaged},
		"gone":   {func(l, e int) (*shard.Expert, error) { return nil, errors.New("no file") }, shard.ErrLost},
		"nobody": {nil, shard.ErrLost},
	} {
		s, err := shard.New(shard.Options{Experts: all, Placement: from, Reload: c.reload})
		if err != nil {
			t.Fatal(err)
		}
		want := answers(s)
		if err := s.Lose(0); err != nil { // 2 was nowhere else
			t.Fatal(err)
		}
		if err := s.Apply(t.Context(), 1, from, to); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if got := answers(s)[[3]int{0, 2, 1}]; c.want == nil && got != want[[3]int{0, 2, 0}] {
			t.Errorf("expert 2 computes %v, before %v", got, want[[3]int{0, 2, 0}])
		}
	}
}

func TestNewRefuses(t *testing.T) {
	fleet := plan.Uniform(2, 2)
	for name, p := range map[string]plan.Placement{
		"other model": plan.Trivial(2, 4, fleet),
		"missing":     {Experts: 4, Fleet: fleet, Layers: [][]int{{0, 1, 2, 2}}},
		"none":        {},
	} {
		if _, err := shard.New(shard.Options{Experts: experts(t, 1, 4), Placement: p}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
