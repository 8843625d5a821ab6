package learn

import (
	"errors"
	"fmt"
	"math"

	"github.com/weirhq/weir/cascade"
)

// ErrStats says that statistics have another shape than the prior, or numbers
// that cannot be.
var ErrStats = errors.New("statistics do not fit")

const (
	// maxFeature bounds what a feature can be: log-odds are clipped to 16.
	maxFeature = 17
	// nodeWeight is the most that one node counts in a merge, in labels.
	nodeWeight = 2000
	// priorReach is how far each value of a merged prior may lie from its base.
	priorReach = 2
)

// Check refuses, with ErrStats, a report that no labels can have given. What it
// lets through is bounded: see MergePrior.
func (r *Report) Check() error {
	d := len(r.Features) + 1
	if d < 2 || d > 9 || len(r.Base) != d || len(r.At) != d || len(r.Cells) > MaxCells {
		return fmt.Errorf("%w: %d features, %d cells", ErrStats, len(r.Features), len(r.Cells))
	}
	for _, f := range r.Features {
		if !f.Valid() {
			return fmt.Errorf("%w: unknown feature %q", ErrStats, f)
		}
	}
	for i := range d {
		if !within(r.Base[i], 64) || !within(r.At[i], 64) {
			return fmt.Errorf("%w: a prior is out of range", ErrStats)
		}
	}
	for i := range r.Cells {
		if err := r.Cells[i].check(d); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stats) check(d int) error {
	if len(s.Cell) > 128 || s.N < 0 || len(s.Gradient) != d || len(s.Hessian) != d*d || !(s.Sum >= 0 && s.Sum <= cellWeight*1.001) {
		return fmt.Errorf("%w: cell %.128q has %d values and weight %v", ErrStats, s.Cell, len(s.Gradient), s.Sum)
	}
	for _, v := range s.Gradient {
		if !within(v, s.Sum*maxFeature) {
			return fmt.Errorf("%w: cell %q: gradient", ErrStats, s.Cell)
		}
	}
	for i, v := range s.Hessian {
		asymmetry := v - s.Hessian[i%d*d+i/d]
		if !within(v, s.Sum*maxFeature*maxFeature/4+1e-6) || i%(d+1) == 0 && v < 0 || !within(asymmetry, 1e-6*(1+math.Abs(v))) {
			return fmt.Errorf("%w: cell %q: Hessian", ErrStats, s.Cell)
		}
	}
	for _, q := range []Quality{s.Cloud, s.Helps} {
		if !(q.Weight >= 0 && q.Weight < 1e9 && q.Right >= 0 && q.Right <= q.Weight*1.001) {
			return fmt.Errorf("%w: cell %q: quality", ErrStats, s.Cell)
		}
	}
	return nil
}

func within(v, most float64) bool { return math.Abs(v) <= most } // false for NaN

// MergePrior returns the prior that reports agree on: the maximum of their
// quadratic approximations, each around the prior at which it was taken, held to
// base by tau pseudo-labels. One node counts for at most 2,000 labels and no value
// moves further than 2 from base, so that a broken node cannot throw it out.
// Repeated rounds converge to the joint fit. Reports of another shape than base,
// or that Check refuses, give ErrStats.
func MergePrior(base cascade.Logistic, tau float64, reports []Report) (cascade.Logistic, error) {
	from := base.Values()
	d := len(from)
	want, hess := make([]float64, d), make([]float64, d*d)
	for j := range d {
		hess[j*d+j] = math.Max(tau, 1e-3)
	}
	for i := range reports {
		r := &reports[i]
		if err := r.Check(); err != nil {
			return base, err
		}
		if len(r.At) != d {
			return base, fmt.Errorf("%w: a report has %d values, the prior %d", ErrStats, len(r.At), d)
		}
		r.add(want, hess, from)
	}
	step := cascade.SolveSymmetric(hess, want)
	if step == nil {
		return base, fmt.Errorf("%w: the Hessian is not positive", ErrStats)
	}
	for j, v := range step {
		from[j] += math.Max(-priorReach, math.Min(priorReach, v))
	}
	return cascade.Logistic{Bias: from[0], W: from[1:]}, nil
}

// add adds the report's share of the normal equations for a step from base:
// H step = g + H (at - base).
func (r *Report) add(want, hess, from []float64) {
	d, total := len(from), 0.0
	for i := range r.Cells {
		total += r.Cells[i].Sum
	}
	f := math.Min(1, nodeWeight/math.Max(total, 1))
	for _, s := range r.Cells {
		for j := range d {
			want[j] += f * s.Gradient[j]
			for k := range d {
				h := f * s.Hessian[j*d+k]
				hess[j*d+k] += h
				want[j] += h * (r.At[k] - from[k])
			}
		}
	}
}
