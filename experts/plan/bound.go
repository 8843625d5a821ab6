package plan

import (
	"math"
	"slices"
)

// Bound is a lower bound on the highest device time of one layer for any
// placement on the fleet and any split of tokens over replicas: the larger of
// the mean bound W/sum of speeds and the item bound, the least that the
// heaviest replica can weigh when slots are given out best.
func Bound(load []float64, f Fleet) float64 {
	sum := 0.0
	for _, w := range load {
		sum += w
	}
	if sum <= 0 {
		return 0
	}
	mean := sum / f.Capacity()
	if fits(load, f, mean) {
		return mean
	}
	return max(mean, itemBound(load, f))
}

// fits reports whether the slots suffice for replicas of at most limit each,
// which spares the item bound. It knows only equal devices.
func fits(load []float64, f Fleet, limit float64) bool {
	if f.Speed != nil {
		return false
	}
	most, slots := float64(f.active()), f.Total()
	for _, w := range load {
		r := max(1, math.Ceil(w/limit))
		if r > most {
			return false
		}
		slots -= int(r)
	}
	return slots >= 0
}

// itemBound gives extra slots to whatever expert is heaviest per replica, as
// in EPLB, which attains the bound for equal devices. With unequal speeds r
// replicas sit at best on the r fastest devices, so one of them weighs at
// least min over r' <= r of w/(r' * r'-th speed); a step skips to the next r
// that helps.
func itemBound(load []float64, f Fleet) float64 {
	relief := bestRelief(f)
	spare := f.Total() - len(load)
	cnt := make([]int, len(load))
	cur := make([]float64, len(load))
	for e, w := range load {
		cnt[e], cur[e] = 1, w*relief[0]
	}
	for {
		top := 0
		for e, x := range cur {
			if x > cur[top] {
				top = e
			}
		}
		r := cnt[top]
		for r < len(relief) && relief[r] >= relief[cnt[top]-1] {
			r++
		}
		if r >= len(relief) || r+1-cnt[top] > spare {
			return cur[top]
		}
		spare -= r + 1 - cnt[top]
		cnt[top] = r + 1
		cur[top] = load[top] * relief[r]
	}
}

// bestRelief[r-1] is the least share of an expert's load, in time, that the
// worst of at most r replicas carries.
func bestRelief(f Fleet) []float64 {
	var speeds []float64
	for d := range f.Slots {
		if v := f.speed(d); v > 0 {
			speeds = append(speeds, v)
		}
	}
	slices.SortFunc(speeds, func(a, b float64) int {
		if a > b {
			return -1
		}
		return 1
	})
	out := make([]float64, len(speeds))
	for i, v := range speeds {
		out[i] = 1 / (float64(i+1) * v)
		if i > 0 {
			out[i] = min(out[i], out[i-1])
		}
	}
	return out
}

// ReplicaBound is a lower bound for a given replica vector on equal devices
// with all slots filled: the heaviest replica and the slots-1 lightest.
func ReplicaBound(load []float64, count []int, slots int) float64 {
	var shares []float64
	for e, c := range count {
		for range c {
			shares = append(shares, load[e]/float64(c))
		}
	}
	slices.Sort(shares)
	if len(shares) == 0 || slots < 1 {
		return 0
	}
	sum := shares[len(shares)-1]
	for _, s := range shares[:min(slots-1, len(shares)-1)] {
		sum += s
	}
	return sum
}
