package gate

import (
	"fmt"
	"math"
)

// Params are one layer's parameters of LASER-style routing. The rule is a
// reconstruction from the abstract and introduction of LASER (arXiv
// 2510.03293); the paper's own pseudo-code was not available, so nothing here
// claims to be it. Where the top-k of a token carry less than EpsHigh of all
// score mass, the pool widens to experts that score at least Tau times the
// k-th, at most Pool of them, and the k least loaded of the pool are taken.
type Params struct {
	EpsHigh float32 `json:"eps_high"` // in [0, 1]; 0 never changes anything
	Tau     float32 `json:"tau"`      // in (0, 1]; 1 changes nothing but ties
	Pool    int     `json:"pool"`     // at least k
}

// Validate checks the parameters for a gate.
func (p Params) Validate(s Spec) error {
	if !(p.EpsHigh >= 0 && p.EpsHigh <= 1 && p.Tau > 0 && p.Tau <= 1) || p.Pool < s.TopK || p.Pool > s.Experts {
		return fmt.Errorf("%w: eps_high %v, tau %v, pool %d for top %d of %d experts",
			ErrSpec, p.EpsHigh, p.Tau, p.Pool, s.TopK, s.Experts)
	}
	return nil
}

// Outcome tells what routing did with one token in one layer.
type Outcome struct {
	Mass float32 // share of all score mass that the model's own top-k carry
	Next float32 // (k+1)-th selection score over the k-th, 0 where undefined
	Lost float32 // part of the top-k's score mass given up, in [0, 1]
	// Rigid is the share of the token's k experts that the rule leaves no
	// choice about, in [0, 1]: 1 where the pool is the top-k, 0 where it is
	// twice as large.
	Rigid   float32
	Changed bool // the selection is not the model's own
}

// Router routes the tokens of a model's layers. Counters are per layer.
type Router struct {
	gate   *Gate
	layers []layerState
	pool   []int32
	own    []int32
}

// layerState is what a layer's router knows of load.
type layerState struct {
	params  Params
	counter []float64
	homes   [][]int32 // devices of each expert; nil without placement
	inv     []float64 // 1/speed per device
	device  []float64 // load per device
}

// NewRouter makes a router with one Params per layer.
func NewRouter(spec Spec, params []Params) (*Router, error) {
	g, err := New(spec)
	if err != nil {
		return nil, err
	}
	r := &Router{gate: g, layers: make([]layerState, len(params)),
		pool: make([]int32, 0, spec.Experts), own: make([]int32, 0, spec.TopK)}
	for l, p := range params {
		if err := p.Validate(spec); err != nil {
			return nil, fmt.Errorf("layer %d: %w", l, err)
		}
		r.layers[l] = layerState{params: p, counter: make([]float64, spec.Experts)}
	}
	return r, nil
}

// Gate is the gate that the router asks for the model's own choice.
func (r *Router) Gate() *Gate { return r.gate }

// Place tells a layer where experts are: homes[e] are the devices that hold e,
// speed is relative per device. Experts are then ranked by their least loaded
// device first. Device loads start at zero.
func (r *Router) Place(layer int, homes [][]int32, speed []float64) error {
	if len(homes) != r.gate.spec.Experts {
		return fmt.Errorf("%w: homes of %d experts, the gate has %d", ErrSpec, len(homes), r.gate.spec.Experts)
	}
	inv := make([]float64, len(speed))
	for d, v := range speed {
		if !(v > 0) || math.IsInf(v, 1) {
			return fmt.Errorf("%w: device %d has speed %v", ErrSpec, d, v)
		}
		inv[d] = 1 / v
	}
	for e, h := range homes {
		if len(h) == 0 {
			return fmt.Errorf("%w: expert %d has no device", ErrSpec, e)
		}
		for _, d := range h {
			if d < 0 || int(d) >= len(speed) {
				return fmt.Errorf("%w: expert %d is on device %d of %d", ErrSpec, e, d, len(speed))
			}
		}
	}
	s := &r.layers[layer]
	s.homes, s.inv, s.device = homes, inv, make([]float64, len(speed))
	return nil
}

// Reset zeroes all counters: at the start of each prefill batch.
func (r *Router) Reset() {
	for l := range r.layers {
		clear(r.layers[l].counter)
		clear(r.layers[l].device)
	}
}

// Decay ages all counters by tokens with the given half-life in tokens: after
// each decode step.
func (r *Router) Decay(tokens, halfLife float64) {
	f := math.Exp2(-tokens / halfLife)
	for l := range r.layers {
		for e := range r.layers[l].counter {
			r.layers[l].counter[e] *= f
		}
		for d := range r.layers[l].device {
			r.layers[l].device[d] *= f
		}
	}
}

// Route chooses the experts of one token and counts them. It appends them to
// sel[:0], best selection score first. own is the model's own choice, valid
// until the next call; scores and bias are as for Gate.TopK.
func (r *Router) Route(layer int, sel []int32, scores, bias []float32) (chosen, own []int32, out Outcome) {
	g, s := r.gate, &r.layers[layer]
	k := g.spec.TopK
	g.prepare(scores, bias)
	r.pool = best(r.pool[:0], g.biased, min(max(s.params.Pool, k+1), g.spec.Experts))
	r.own = append(r.own[:0], r.pool[:k]...)
	kth := g.biased[r.pool[k-1]]
	out.Mass = mass(scores, r.own)
	if len(r.pool) > k && kth > 0 {
		out.Next = max(0, g.biased[r.pool[k]]/kth)
	}
	n := k
	if out.Mass < s.params.EpsHigh && kth > 0 {
		for n < min(s.params.Pool, len(r.pool)) && g.biased[r.pool[n]] >= s.params.Tau*kth {
			n++
		}
	}
	out.Rigid = max(0, 1-float32(n-k)/float32(k))
	sel = append(sel[:0], r.own...)
	if n > k {
		sel = s.lightest(sel[:0], r.pool[:n], k)
		sortByScore(sel, g.biased)
		out.Lost, out.Changed = lost(scores, r.own, sel)
	}
	s.count(sel)
	return sel, r.own, out
}

// mass is the share of all scores that sel carries.
func mass(scores []float32, sel []int32) float32 {
	all, part := 0.0, 0.0
	for _, x := range scores {
		all += float64(x)
	}
	for _, e := range sel {
		part += float64(scores[e])
	}
	if !(all > 0) {
		return 1
	}
	return float32(part / all)
}

// lost is the share of own's score mass that sel does not have.
func lost(scores []float32, own, sel []int32) (float32, bool) {
	a, b, changed := 0.0, 0.0, false
	for i, e := range own {
		a += float64(scores[e])
		b += float64(scores[sel[i]])
		changed = changed || e != sel[i]
	}
	if !(a > 0) {
		return 0, changed
	}
	return float32(max(0, 1-b/a)), changed
}

// lightest appends the k experts of the pool with the least load. The pool is
// in order of (-score, index), so an earlier one wins ties.
func (s *layerState) lightest(sel, pool []int32, k int) []int32 {
	for range k {
		pick := int32(-1)
		for _, e := range pool {
			if !contains(sel, e) && (pick < 0 || s.lighter(e, pick)) {
				pick = e
			}
		}
		sel = append(sel, pick)
	}
	return sel
}

// lighter compares the least loaded devices, then the counters.
func (s *layerState) lighter(a, b int32) bool {
	if s.homes != nil {
		x, y := s.time(s.home(a)), s.time(s.home(b))
		if x != y {
			return x < y
		}
	}
	return s.counter[a] < s.counter[b]
}

func (s *layerState) time(d int32) float64 { return s.device[d] * s.inv[d] }

// home is the least loaded device that holds e, the first on ties.
func (s *layerState) home(e int32) int32 {
	best := s.homes[e][0]
	for _, d := range s.homes[e][1:] {
		if s.time(d) < s.time(best) {
			best = d
		}
	}
	return best
}

// count adds one token to the chosen experts and their devices.
func (s *layerState) count(sel []int32) {
	for _, e := range sel {
		s.counter[e]++
		if s.homes != nil {
			s.device[s.home(e)]++
		}
	}
}

// sortByScore orders sel by (-score, index).
func sortByScore(sel []int32, score []float32) {
	for i := 1; i < len(sel); i++ {
		for j := i; j > 0; j-- {
			a, b := sel[j-1], sel[j]
			if score[a] > score[b] || score[a] == score[b] && a < b {
				break
			}
			sel[j-1], sel[j] = b, a
		}
	}
}

// Counters are the loads of a layer as the router counts them; the slice is
// the router's own.
func (r *Router) Counters(layer int) []float64 { return r.layers[layer].counter }

// DeviceLoads are tokens per device of a placed layer, as the router sends
// them: each to the least loaded device that holds the expert. The slice is
// the router's own; nil without placement.
func (r *Router) DeviceLoads(layer int) []float64 { return r.layers[layer].device }
