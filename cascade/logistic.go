package cascade

import (
	"errors"
	"math"
)

// ErrFit says that there is too little to fit a calibration from: fewer than
// ten samples, or only right or only wrong ones.
var ErrFit = errors.New("too few samples to calibrate")

// Logistic is a logistic regression p = sigmoid(Bias + sum W[i] x[i]).
type Logistic struct {
	Bias float64
	W    []float64
}

// Sigmoid is 1/(1+exp(-x)), stable at both ends.
func Sigmoid(x float64) float64 {
	if x >= 0 {
		return 1 / (1 + math.Exp(-x))
	}
	e := math.Exp(x)
	return e / (1 + e)
}

// Logit is the inverse of Sigmoid, clipped to +-16.
func Logit(p float64) float64 {
	const eps = 1.1e-7
	p = math.Max(eps, math.Min(1-eps, p))
	return math.Log(p / (1 - p))
}

// P returns the probability for x.
func (l *Logistic) P(x []float64) float64 {
	z := l.Bias
	for i, w := range l.W {
		z += w * x[i]
	}
	return Sigmoid(z)
}

// Values returns bias and weights as one slice, bias first.
func (l *Logistic) Values() []float64 { return append([]float64{l.Bias}, l.W...) }

// FitLogistic fits by Newton steps (IRLS, at most 25) with a Gaussian prior of
// precision tau around prior, which may be nil for zero. x is row-major, one
// row of dim values per label; y lies in [0, 1]; w may be nil for equal weight.
// A prior of another shape is an error of the caller and is ignored.
func FitLogistic(x []float64, dim int, y, w []float64, prior *Logistic, tau float64) Logistic {
	return RefitLogistic(prior, x, dim, y, w, prior, tau)
}

// RefitLogistic is FitLogistic with another first guess, such as the fit of a
// moment ago, which saves steps.
func RefitLogistic(guess *Logistic, x []float64, dim int, y, w []float64, prior *Logistic, tau float64) Logistic {
	d := dim + 1
	center, beta := prior.vector(dim), guess.vector(dim)
	grad, hess, row := make([]float64, d), make([]float64, d*d), make([]float64, d)
	row[0] = 1
	for range 25 {
		clear(grad)
		clear(hess)
		for j := range d {
			grad[j] = -tau * (beta[j] - center[j])
			hess[j*d+j] = tau
		}
		for i, yi := range y {
			copy(row[1:], x[i*dim:(i+1)*dim])
			wi := 1.0
			if w != nil {
				wi = w[i]
			}
			accumulate(grad, hess, row, beta, yi, wi)
		}
		step := SolveSymmetric(hess, grad)
		if step == nil || addStep(beta, step) < 1e-7 {
			break
		}
	}
	return Logistic{Bias: beta[0], W: beta[1:]}
}

// FloorSlope raises the first weight to at least least, so that a more
// confident answer is never called less likely to be right, and fits the bias
// anew where that changed it. Arguments are those of FitLogistic.
func (l *Logistic) FloorSlope(least float64, x []float64, dim int, y, w []float64) {
	if dim == 0 || l.W[0] >= least {
		return
	}
	l.W[0] = least
	for range 25 {
		grad, hess := 0.0, 1e-6
		for i, yi := range y {
			p, wi := l.P(x[i*dim:(i+1)*dim]), 1.0
			if w != nil {
				wi = w[i]
			}
			grad += wi * (yi - p)
			hess += wi * p * (1 - p)
		}
		step := math.Max(-4, math.Min(4, grad/hess))
		l.Bias += step
		if math.Abs(step) < 1e-7 {
			return
		}
	}
}

// vector returns bias and weights as one slice, zeros when l is nil or of
// another shape.
func (l *Logistic) vector(dim int) []float64 {
	v := make([]float64, dim+1)
	if l != nil && len(l.W) == dim {
		v[0] = l.Bias
		copy(v[1:], l.W)
	}
	return v
}

func accumulate(grad, hess, row, beta []float64, y, w float64) {
	z := 0.0
	for j, b := range beta {
		z += b * row[j]
	}
	p := Sigmoid(z)
	h := w * math.Max(p*(1-p), 1e-9)
	d := len(row)
	for j, rj := range row {
		grad[j] += w * (y - p) * rj
		for k := range j + 1 {
			hess[j*d+k] += h * rj * row[k]
		}
	}
}

// addStep moves beta and returns the largest change. Steps are bounded so that
// separable data cannot throw the iteration out.
func addStep(beta, step []float64) float64 {
	largest := 0.0
	for _, s := range step {
		largest = math.Max(largest, math.Abs(s))
	}
	scale := 1.0
	if largest > 8 {
		scale = 8 / largest
	}
	for j, s := range step {
		beta[j] += scale * s
	}
	return largest
}

// SolveSymmetric solves the positive definite system a x = b by Cholesky's
// method. a is row-major with len(b) squared values, of which the lower triangle
// is read. It returns nil when a is not positive definite.
func SolveSymmetric(a, b []float64) []float64 {
	d := len(b)
	l := make([]float64, d*d)
	for i := range d {
		for j := range i + 1 {
			s := a[i*d+j]
			for k := range j {
				s -= l[i*d+k] * l[j*d+k]
			}
			if i != j {
				l[i*d+j] = s / l[j*d+j]
				continue
			}
			if !(s > 1e-12) {
				return nil
			}
			l[i*d+i] = math.Sqrt(s)
		}
	}
	x := append([]float64(nil), b...)
	for i := range d {
		for k := range i {
			x[i] -= l[i*d+k] * x[k]
		}
		x[i] /= l[i*d+i]
	}
	for i := d - 1; i >= 0; i-- {
		for k := i + 1; k < d; k++ {
			x[i] -= l[k*d+i] * x[k]
		}
		x[i] /= l[i*d+i]
	}
	return x
}
