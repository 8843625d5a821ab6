package plan

import "fmt"

// SpareValue is the imbalance that a layer reaches with 0, step, 2*step, ...
// spare slots, spread evenly over equal devices: what one more slot per device
// is worth. step is the number of devices where E divides by them. Work is the
// search spent on each point.
func SpareValue(load []float64, devices, points, work int) ([]float64, error) {
	out := make([]float64, 0, points)
	base := (len(load) + devices - 1) / max(1, devices)
	for i := range points {
		f := Uniform(devices, base+i)
		if err := f.Validate(len(load)); err != nil {
			if i > 0 {
				break // every device holds every expert
			}
			return nil, fmt.Errorf("value of spare slots: %w", err)
		}
		r, err := Solve(Problem{Loads: [][]float64{load}, Fleet: f, Work: work})
		if err != nil {
			return nil, err
		}
		v := r.Layers[0].After
		if i > 0 {
			v = min(v, out[i-1])
		}
		out = append(out, v)
	}
	return out, nil
}

// Allocate spends a budget of steps over layers where they lower the sum of
// weight*value most (CRAFT, arXiv 2603.28768). values[l][i] is the value of
// layer l after i steps, not increasing. It looks ahead over flat stretches:
// the next buy of a layer is the run of steps with the best mean gain. It
// returns steps per layer.
func Allocate(values [][]float64, weight []float64, budget int) []int {
	steps := make([]int, len(values))
	for budget > 0 {
		best, bestRun, bestGain := -1, 0, 0.0
		for l, v := range values {
			for run := 1; run <= budget && steps[l]+run < len(v); run++ {
				gain := weight[l] * (v[steps[l]] - v[steps[l]+run]) / float64(run)
				if gain > bestGain {
					best, bestRun, bestGain = l, run, gain
				}
			}
		}
		if best < 0 {
			break
		}
		steps[best] += bestRun
		budget -= bestRun
	}
	return steps
}
