package prerouter

import (
	"errors"
	"fmt"
	"math"
)

// ErrState says that a kept state is damaged.
var ErrState = errors.New("state of the pre-router is damaged")

// State is a Router as it is kept: the features that it has seen.
type State struct {
	Documents float64        `json:"documents"`
	Features  []FeatureState `json:"features"`
}

// FeatureState is what a Router knows of one feature: in how many prompts it was,
// and the sums of both regressions.
type FeatureState struct {
	Index     uint32     `json:"i"`
	Prompts   uint32     `json:"p"`
	EdgeZN    [2]float64 `json:"e"`
	BenefitZN [2]float64 `json:"b"`
}

// State copies what r has learned.
func (r *Router) State() State {
	st := State{Documents: r.documents}
	for i := range r.frequency {
		f := FeatureState{uint32(i), r.frequency[i], [2]float64{r.edge.z[i], r.edge.n[i]}, [2]float64{r.benefit.z[i], r.benefit.n[i]}}
		if f != (FeatureState{Index: uint32(i)}) {
			st.Features = append(st.Features, f)
		}
	}
	return st
}

// RestoreRouter is the Router of a state. ErrState when that is impossible.
func RestoreRouter(st State) (*Router, error) {
	r := NewRouter()
	if !(st.Documents >= 0) {
		return nil, fmt.Errorf("%w: %v prompts", ErrState, st.Documents)
	}
	r.documents = st.Documents
	for _, f := range st.Features {
		if f.Index >= dimension || !sums(f.EdgeZN) || !sums(f.BenefitZN) {
			return nil, fmt.Errorf("%w: feature %d", ErrState, f.Index)
		}
		r.frequency[f.Index] = f.Prompts
		r.edge.z[f.Index], r.edge.n[f.Index] = f.EdgeZN[0], f.EdgeZN[1]
		r.benefit.z[f.Index], r.benefit.n[f.Index] = f.BenefitZN[0], f.BenefitZN[1]
	}
	return r, nil
}

// sums reports whether these can be sums of gradients and of their squares.
func sums(zn [2]float64) bool {
	return !math.IsNaN(zn[0]) && !math.IsInf(zn[0], 0) && zn[1] >= 0 && !math.IsInf(zn[1], 0)
}
