package plan

import (
	"math"
	"slices"
)

// alignDevices relabels equal devices so that as many experts as possible stay
// where old has them: an assignment problem on the overlap of their sets.
func alignDevices(row []int, f Fleet, old Placement) []int {
	g := len(f.Slots)
	first, oldSets := f.first(), old.sets(0)
	had := make([]bool, g*old.Experts)
	for d := 0; d < g && d < len(oldSets); d++ {
		for _, e := range oldSets[d] {
			had[d*old.Experts+int(e)] = true
		}
	}
	cost := make([][]float64, g) // [new device][label]
	for n := range cost {
		cost[n] = make([]float64, g)
		for d := range g {
			if f.Slots[n] != f.Slots[d] || f.speed(n) != f.speed(d) {
				cost[n][d] = forbidden
				continue
			}
			for _, e := range row[first[n]:first[n+1]] {
				if !had[d*old.Experts+e] {
					cost[n][d]++
				}
			}
		}
	}
	out := make([]int, len(row))
	for n, d := range assign(cost) {
		copy(out[first[d]:], row[first[n]:first[n+1]])
	}
	return out
}

// forbidden is more than any sum of allowed costs.
const forbidden = 1e12

// assign is the Hungarian algorithm with potentials (Kuhn 1955, in the O(n^3)
// form of Jonker and Volgenant 1987): the column for each row with the least
// total cost.
func assign(cost [][]float64) []int {
	n := len(cost)
	u, v := make([]float64, n+1), make([]float64, n+1)
	match, way := make([]int, n+1), make([]int, n+1) // column -> row, 1-based
	minTo, used := make([]float64, n+1), make([]bool, n+1)
	for i := 1; i <= n; i++ {
		match[0] = i
		for j := range minTo {
			minTo[j], used[j] = math.Inf(1), false
		}
		at := 0
		for match[at] != 0 {
			at = relax(cost, u, v, match, way, minTo, used, at)
		}
		for at != 0 {
			match[at] = match[way[at]]
			at = way[at]
		}
	}
	out := make([]int, n)
	for j := 1; j <= n; j++ {
		out[match[j]-1] = j - 1
	}
	return out
}

// relax grows the alternating tree by column at and returns the next one.
func relax(cost [][]float64, u, v []float64, match, way []int, minTo []float64, used []bool, at int) int {
	used[at] = true
	i, next, delta := match[at], 0, math.Inf(1)
	for j := 1; j < len(v); j++ {
		if used[j] {
			continue
		}
		if c := cost[i-1][j-1] - u[i] - v[j]; c < minTo[j] {
			minTo[j], way[j] = c, at
		}
		if minTo[j] < delta {
			delta, next = minTo[j], j
		}
	}
	for j := range v {
		if used[j] {
			u[match[j]] += delta
			v[j] -= delta
		} else {
			minTo[j] -= delta
		}
	}
	return next
}

// alignSlots orders the experts of each device so that those that stay keep
// their old slot (vLLM's preserve_intragpu_slots). Slot order is free.
func alignSlots(row []int, f Fleet, old Placement) []int {
	out := make([]int, len(row))
	at, oldAt := 0, 0
	for d, n := range f.Slots {
		oldN := 0
		if d < len(old.Fleet.Slots) {
			oldN = old.Fleet.Slots[d]
		}
		keepSlots(out[at:at+n], row[at:at+n], old.Layers[0][oldAt:oldAt+oldN])
		at += n
		oldAt += oldN
	}
	return out
}

// keepSlots writes the experts of now into out: in the slot that was has them
// in, else in the free slots in order. now has no expert twice.
func keepSlots(out, now, was []int) {
	for i := range out {
		out[i] = -1
		if i < len(was) && slices.Contains(now, was[i]) && !slices.Contains(out[:i], was[i]) {
			out[i] = was[i]
		}
	}
	free := 0
	for _, e := range now {
		if slices.Contains(out, e) {
			continue
		}
		for out[free] >= 0 {
			free++
		}
		out[free] = e
	}
}
