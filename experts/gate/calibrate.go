package gate

import "fmt"

// Report is what parameters do on recorded scores of one layer.
type Report struct {
	Lost            float64 // share of the top-k's score mass given up
	Changed         float64 // share of tokens routed otherwise
	Rigid           float64 // share of load without a choice, see Outcome
	Before, After   float64 // imbalance (max/mean) of experts
	Tokens, Experts int
}

// Measure routes recorded scores, [token][expert] in batch order, with the
// given parameters.
func Measure(spec Spec, p Params, scores [][]float32, bias []float32) (Report, error) {
	r, err := NewRouter(spec, []Params{p})
	if err != nil {
		return Report{}, err
	}
	rep := Report{Tokens: len(scores), Experts: spec.Experts, Before: 1, After: 1}
	if len(scores) == 0 {
		return rep, nil
	}
	demand := make([]float64, spec.Experts)
	sel := make([]int32, 0, spec.TopK)
	kept, all := 0.0, 0.0
	for i, row := range scores {
		if len(row) != spec.Experts {
			return Report{}, fmt.Errorf("%w: token %d has %d scores, the gate has %d experts", ErrSpec, i, len(row), spec.Experts)
		}
		var own []int32
		var out Outcome
		sel, own, out = r.Route(0, sel, row, bias)
		for _, e := range own {
			demand[e]++
		}
		top := 0.0
		for _, e := range own {
			top += float64(row[e])
		}
		all += top
		kept += top * (1 - float64(out.Lost))
		if out.Changed {
			rep.Changed++
		}
		rep.Rigid += float64(out.Rigid)
	}
	n := float64(len(scores))
	rep.Changed /= n
	rep.Rigid /= n
	if all > 0 {
		rep.Lost = 1 - kept/all
	}
	rep.Before, rep.After = imbalance(demand), imbalance(r.Counters(0))
	return rep, nil
}

func imbalance(x []float64) float64 {
	top, sum := 0.0, 0.0
	for _, v := range x {
		top, sum = max(top, v), sum+v
	}
	if sum == 0 {
		return 1
	}
	return top * float64(len(x)) / sum
}

// Calibrate finds the lowest Tau of one layer whose lost mass on recorded
// scores stays within budget (0.02 to 0.05 are sensible); lower balances more.
// EpsHigh and Pool of start are kept. When no Tau below 1 keeps the budget it
// returns Tau 1, which changes nothing but ties.
func Calibrate(spec Spec, start Params, scores [][]float32, bias []float32, budget float64) (Params, Report, error) {
	// Lost mass is not strictly monotone in Tau, because routing feeds back
	// through its counters: so walk down a grid, then bisect the last step.
	good := start
	good.Tau = 1
	goodRep, err := Measure(spec, good, scores, bias)
	if err != nil {
		return Params{}, Report{}, err
	}
	try := func(tau float32) (bool, error) {
		p := start
		p.Tau = tau
		rep, err := Measure(spec, p, scores, bias)
		if err != nil || rep.Lost > budget {
			return false, err
		}
		good, goodRep = p, rep
		return true, nil
	}
	bad := float32(0)
	for tau := float32(0.95); tau > 0.01; tau -= 0.05 {
		ok, err := try(tau)
		if err != nil {
			return Params{}, Report{}, err
		}
		if !ok {
			bad = tau
			break
		}
	}
	for range 6 {
		if bad == 0 {
			break
		}
		mid := (bad + good.Tau) / 2
		ok, err := try(mid)
		if err != nil {
			return Params{}, Report{}, err
		}
		if !ok {
			bad = mid
		}
	}
	return good, goodRep, nil
}
