package fairsim

import (
	"cmp"
	"slices"
)

// Jain is Jain's fairness index over what clients got of what max-min fairness
// would have given them of the same total: 1 when all got the same part.
func (o Outcome) Jain() float64 {
	var parts []float64
	for i, want := range ideal(o.Demand, o.Total) {
		if want > 0 {
			parts = append(parts, o.Service[i]/want)
		}
	}
	return jain(parts)
}

// ideal is what each client would get of a capacity under max-min fairness.
func ideal(demand []float64, capacity float64) []float64 {
	order := make([]int, len(demand))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(demand[a], demand[b]) })
	out := make([]float64, len(demand))
	for n, i := range order {
		out[i] = min(demand[i], capacity/float64(len(order)-n))
		capacity -= out[i]
	}
	return out
}

// jain is Jain's fairness index, 1 when all are equal.
func jain(x []float64) float64 {
	var sum, squares float64
	for _, v := range x {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(x)) * squares)
}
