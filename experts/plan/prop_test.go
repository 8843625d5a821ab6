package plan

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawLoad makes loads with zeros, ties, and heavy tails.
func drawLoad(t *rapid.T, experts int) []float64 {
	kind := rapid.IntRange(0, 3).Draw(t, "kind")
	w := make([]float64, experts)
	for e := range w {
		switch kind {
		case 0:
			w[e] = float64(rapid.IntRange(0, 3).Draw(t, "w"))
		case 1:
			w[e] = rapid.Float64Range(0, 1000).Draw(t, "w")
		case 2:
			w[e] = math.Exp(rapid.Float64Range(0, 9).Draw(t, "w"))
		default:
			if rapid.IntRange(0, 9).Draw(t, "w") == 0 {
				w[e] = 100
			}
		}
	}
	return w
}

// drawFleet makes a fleet that can hold the experts, equal or not.
func drawFleet(t *rapid.T, experts int) Fleet {
	g := rapid.IntRange(1, 8).Draw(t, "devices")
	f := Fleet{Slots: make([]int, g)}
	if rapid.Bool().Draw(t, "equal") {
		low := (experts + g - 1) / g
		f = Uniform(g, rapid.IntRange(low, min(experts, low+3)).Draw(t, "slots"))
	} else {
		for d := range f.Slots {
			f.Slots[d] = rapid.IntRange(0, experts).Draw(t, "slots")
		}
		for d := 0; f.Total() < experts; d = (d + 1) % g {
			f.Slots[d] = min(experts, f.Slots[d]+1)
		}
	}
	if rapid.Bool().Draw(t, "speeds") {
		f.Speed = make([]float64, g)
		for d := range f.Speed {
			f.Speed[d] = rapid.Float64Range(0.25, 4).Draw(t, "speed")
		}
	}
	return f
}

func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		experts := rapid.IntRange(1, 24).Draw(t, "experts")
		f := drawFleet(t, experts)
		loads := [][]float64{drawLoad(t, experts), drawLoad(t, experts), make([]float64, experts)}
		p := Problem{Loads: loads, Fleet: f, Work: 9000}
		if rapid.Bool().Draw(t, "activated") {
			p.Objective, p.StepTokens, p.TopK = Activated, 16, 2
		}
		r := checkSolve(t, p)
		if r.Moves() != 0 {
			t.Fatalf("moves %d without an old plan", r.Moves())
		}
		p.Loads = [][]float64{drawLoad(t, experts), drawLoad(t, experts), drawLoad(t, experts)}
		p.Old, p.Moves = &r.Placement, rapid.IntRange(-1, 6).Draw(t, "moves")
		next := checkSolve(t, p)
		for l, lr := range next.Layers {
			n := next.Placement.Incoming(l, r.Placement)
			if n != lr.Moves || p.Moves >= 0 && n > p.Moves {
				t.Fatalf("layer %d: %d transfers, reported %d, budget %d", l, n, lr.Moves, p.Moves)
			}
			if lr.After > lr.Before*(1+1e-9) {
				t.Fatalf("layer %d: imbalance rose from %v to %v", l, lr.Before, lr.After)
			}
			checkSlotsKept(t, next.Placement.Layers[l], r.Placement.Layers[l], f)
		}
	})
}

// checkSolve solves twice and checks every invariant of a plan.
func checkSolve(t *rapid.T, p Problem) Result {
	r, err := Solve(p)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := Solve(p)
	if err := r.Placement.Validate(); err != nil {
		t.Fatal(err)
	}
	for l, lr := range r.Layers {
		if !slices.Equal(r.Placement.Layers[l], again.Placement.Layers[l]) {
			t.Fatalf("layer %d: the same problem gave two plans", l)
		}
		w := p.Weights(l)
		if got := r.Placement.Imbalance(l, w); math.Abs(got-lr.After) > 1e-9*got {
			t.Fatalf("layer %d: imbalance %v, reported %v", l, got, lr.After)
		}
		free := Relative(r.Placement.FreeSplit(l, w), w, p.Fleet)
		if lr.Bound > free*(1+1e-9) || free > lr.After*(1+1e-9) {
			t.Fatalf("layer %d: bound %v <= free split %v <= even split %v does not hold", l, lr.Bound, free, lr.After)
		}
		slots, cnt := r.Placement.SlotsOf(l), r.Placement.Replicas(l)
		total := 0
		for e, s := range slots {
			total += cnt[e]
			if len(s) != cnt[e] {
				t.Fatalf("layer %d expert %d: %d slots, %d replicas", l, e, len(s), cnt[e])
			}
			for _, x := range s {
				if r.Placement.Layers[l][x] != e {
					t.Fatalf("layer %d: slot %d is not of expert %d", l, x, e)
				}
			}
		}
		if total != p.Fleet.Total() {
			t.Fatalf("layer %d: %d replicas in %d slots", l, total, p.Fleet.Total())
		}
	}
	return r
}

// checkSlotsKept checks that no expert changes its slot inside a device.
func checkSlotsKept(t *rapid.T, now, was []int, f Fleet) {
	at := 0
	for _, n := range f.Slots {
		for i := at; i < at+n; i++ {
			if j := slices.Index(was[at:at+n], now[i]); j >= 0 && at+j != i && was[i] != now[i] {
				t.Fatalf("expert %d moved from slot %d to %d of one device", now[i], at+j, i)
			}
		}
		at += n
	}
}

// Losing a device keeps every expert, at the price of some transfers.
func TestDeviceLoss(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		experts := rapid.IntRange(4, 16).Draw(t, "experts")
		g := rapid.IntRange(2, 5).Draw(t, "devices")
		slots := min(experts, (experts+g-2)/(g-1)+1)
		f := Uniform(g, slots)
		loads := [][]float64{drawLoad(t, experts), drawLoad(t, experts)}
		old, err := Solve(Problem{Loads: loads, Fleet: f, Work: 4000})
		if err != nil {
			t.Fatal(err)
		}
		f.Slots = slices.Clone(f.Slots)
		f.Slots[rapid.IntRange(0, g-1).Draw(t, "lost")] = 0
		r, err := Solve(Problem{Loads: loads, Fleet: f, Old: &old.Placement, Moves: experts, Work: 4000})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Placement.Validate(); err != nil {
			t.Fatal(err)
		}
	})
}

// The item bound of equal devices is what the greedy of EPLB attains.
func TestBoundAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "experts")
		w := drawLoad(t, n)
		g := rapid.IntRange(1, 3).Draw(t, "devices")
		slots := rapid.IntRange((n+g-1)/g, n).Draw(t, "slots")
		f := Uniform(g, slots)
		best := math.Inf(1)
		eachRow(f.Total(), n, func(row []int) {
			p := Placement{Experts: n, Fleet: f, Layers: [][]int{row}}
			if p.Validate() == nil {
				best = min(best, slices.Max(p.DeviceLoads(0, w)))
			}
		})
		if b := Bound(w, f); b > best*(1+1e-9) {
			t.Fatalf("bound %v is above the best placement's %v: load %v on %d devices of %d", b, best, w, g, slots)
		}
		r, err := Solve(Problem{Loads: [][]float64{w}, Fleet: f})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Max(r.Placement.DeviceLoads(0, w)); got > best*1.02+1e-9 {
			t.Fatalf("load %v on %d devices of %d: found %v, best %v", w, g, slots, got, best)
		}
	})
}

// Cases that TestBoundAgainstBruteForce once found, where an expert without load
// takes up a slot.
func TestIdleExperts(t *testing.T) {
	for _, tt := range []struct {
		load           []float64
		devices, slots int
		best           float64
	}{
		{[]float64{0, 2, 2}, 2, 2, 2},
		{[]float64{0, 1, 2}, 3, 2, 1},
	} {
		r, err := Solve(Problem{Loads: [][]float64{tt.load}, Fleet: Uniform(tt.devices, tt.slots)})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Max(r.Placement.DeviceLoads(0, tt.load)); got > tt.best+1e-9 {
			t.Errorf("load %v on %d devices of %d: found %v, best %v", tt.load, tt.devices, tt.slots, got, tt.best)
		}
	}
}

// eachRow calls f with every assignment of experts to slots, where there are at most 5000.
func eachRow(slots, experts int, f func([]int)) {
	if math.Pow(float64(experts), float64(slots)) > 5000 {
		return
	}
	row := make([]int, slots)
	for {
		f(row)
		i := 0
		for ; i < slots; i++ {
			if row[i]++; row[i] < experts {
				break
			}
			row[i] = 0
		}
		if i == slots {
			return
		}
	}
}

func TestFreeSplitAgainstSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		experts := rapid.IntRange(1, 12).Draw(t, "experts")
		f := drawFleet(t, experts)
		w := drawLoad(t, experts)
		r, err := Solve(Problem{Loads: [][]float64{w}, Fleet: f, Work: 1000})
		if err != nil {
			t.Fatal(err)
		}
		got, want := r.Placement.FreeSplit(0, w), bruteSplit(r.Placement, w)
		if math.Abs(got-want) > 1e-9*(want+1) {
			t.Fatalf("free split %v, over all sets %v", got, want)
		}
	})
}

// bruteSplit is the maximum over sets of devices of confined load over speed.
func bruteSplit(p Placement, w []float64) float64 {
	on := make([]int, p.Experts)
	at := 0
	for d, n := range p.Fleet.Slots {
		for _, e := range p.Layers[0][at : at+n] {
			on[e] |= 1 << d
		}
		at += n
	}
	best := 0.0
	for set := 1; set < 1<<len(p.Fleet.Slots); set++ {
		need, speed := 0.0, 0.0
		for e, m := range on {
			if m&^set == 0 {
				need += w[e]
			}
		}
		for d := range p.Fleet.Slots {
			if set>>d&1 == 1 {
				speed += p.Fleet.speed(d)
			}
		}
		if speed > 0 {
			best = max(best, need/speed)
		}
	}
	return best
}

// With one or two transfers on few devices the search is near the best of all
// placements that are so few transfers away.
func TestBoundedAgainstBruteForce(t *testing.T) {
	worst := 0.0
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 4).Draw(t, "experts")
		g := rapid.IntRange(2, 3).Draw(t, "devices")
		f := Uniform(g, rapid.IntRange((n+g-1)/g, min(n, 3)).Draw(t, "slots"))
		first, err := Solve(Problem{Loads: [][]float64{drawLoad(t, n)}, Fleet: f})
		if err != nil {
			t.Fatal(err)
		}
		w, k := drawLoad(t, n), rapid.IntRange(1, 2).Draw(t, "moves")
		best := math.Inf(1)
		eachRow(f.Total(), n, func(row []int) {
			p := Placement{Experts: n, Fleet: f, Layers: [][]int{row}}
			if p.Validate() == nil && p.Incoming(0, first.Placement) <= k {
				best = min(best, slices.Max(p.DeviceLoads(0, w)))
			}
		})
		r, err := Solve(Problem{Loads: [][]float64{w}, Fleet: f, Old: &first.Placement, Moves: k})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Max(r.Placement.DeviceLoads(0, w)); best > 0 && !math.IsInf(best, 1) {
			worst = max(worst, got/best)
			if got > best*1.3 {
				t.Fatalf("load %v, %d moves from %v: found %v, best %v", w, k, first.Placement.Layers[0], got, best)
			}
		}
	})
	t.Logf("at worst %.4f of the best", worst)
}
