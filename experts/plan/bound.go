package plan

import (
	"math"
	"slices"
)

// Bound is a lower bound on the highest device time of one layer for any
// placement on the fleet and any split of tokens over replicas: the larger of
// the mean bound W/sum of speeds and the item bound, the least that the
// heaviest replica can weigh when slots are given out best. Without spare slots
// the replica vector is known and ReplicaBound holds too.
func Bound(load []float64, f Fleet) float64 {
	sum := 0.0
	for _, w := range load {
		sum += w
	}
	if sum <= 0 {
		return 0
	}
	mean := sum / f.Capacity()
	if f.Speed == nil && f.Total() == len(load) && uniform(f) {
		ones := make([]int, len(load))
		for e := range ones {
			ones[e] = 1
		}
		return max(mean, ReplicaBound(load, ones, slices.Max(f.Slots)))
	}
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

// uniform reports that all devices in service have the same slots.
func uniform(f Fleet) bool {
	for _, s := range f.Slots {
		if s != 0 && s != slices.Max(f.Slots) {
			return false
		}
	}
	return true
}

// itemBound gives extra slots to whatever expert is heaviest per replica, as
// in EPLB, which attains the bound for equal devices. With unequal speeds the r
// replicas of an expert share its load at best over the r fastest devices.
func itemBound(load []float64, f Fleet) float64 {
	reach := fastest(f)
	cnt := make([]int, len(load))
	cur := make([]float64, len(load))
	for e, w := range load {
		cnt[e], cur[e] = 1, w/reach[0]
	}
	for spare := f.Total() - len(load); ; spare-- {
		top := 0
		for e, x := range cur {
			if x > cur[top] {
				top = e
			}
		}
		if spare == 0 || cnt[top] == len(reach) {
			return cur[top]
		}
		cur[top] = load[top] / reach[cnt[top]]
		cnt[top]++
	}
}

// fastest[r-1] is the sum of the r highest speeds.
func fastest(f Fleet) []float64 {
	var speeds []float64
	for d := range f.Slots {
		if v := f.speed(d); v > 0 {
			speeds = append(speeds, v)
		}
	}
	slices.Sort(speeds)
	slices.Reverse(speeds)
	for i := 1; i < len(speeds); i++ {
		speeds[i] += speeds[i-1]
	}
	return speeds
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
