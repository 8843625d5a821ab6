// Package learn keeps what a running cascade learns from labels, per cell (a
// tenant, route or task): the calibration of the edge model, the quality of
// the cloud, whether the signal is worth gating on, and how many answers to
// label in the shadow. It is pure: one goroutine owns a Table, others read the
// immutable views that it publishes.
package learn

import (
	"math"

	"github.com/weirhq/weir/cascade"
)

// Options are the parameters of the per-cell calibrators. DefaultOptions gives
// the values and their reasons.
type Options struct {
	Tau        float64 // pseudo-labels that pull a cell to the prior
	HalfLife   float64 // labels after which a label counts half
	Capacity   int     // labels kept per cell
	RefitMin   int     // least new labels between refits
	RefitShare float64 // or this share of the labels kept, if more
	Step       float64 // AdaGrad step between refits
	MaxWeight  float64 // cap of 1/propensity
}

// DefaultOptions returns the defaults of the design.
func DefaultOptions() Options {
	return Options{
		Tau:        20,   // a new cell follows its parent until it has a few dozen labels
		HalfLife:   2000, // follows drift within a day of busy traffic
		Capacity:   8000, // older labels weigh below 1/16
		RefitMin:   50,
		RefitShare: .05,
		Step:       .2,
		MaxWeight:  20, // the weight of a 5 % shadow label
	}
}

// Shipped returns the options for cells whose prior was fitted on this many
// labels: it is held by more than one that stands for other cells only.
func (o Options) Shipped(labels int) Options {
	o.Tau = math.Max(o.Tau, math.Min(100, float64(labels)/20))
	return o
}

// slopeFloor keeps the order of the first feature.
const slopeFloor = .05

type label struct {
	x    []float64
	y, w float64
	seq  float64
	// answer says that x is of the answer's span alone, and not of reasoning and
	// JSON structure too.
	answer bool
}

// Cell calibrates the edge model in one cell: Platt's method with a Gaussian
// prior, refitted in batches by IRLS and nudged by AdaGrad in between; isotonic
// regression takes over where it has earned it.
type Cell struct {
	opt   Options
	prior cascade.Logistic
	fit   cascade.Logistic
	grad2 []float64

	labels []label
	next   int
	seq    float64
	fresh  int

	iso        cascade.Curve
	isoWins    float64 // sum of weighted loss differences, Platt minus isotonic
	isoSquares float64
	isoN       float64
	tauFactor  float64
	effective  float64
	answers    float64 // effective labels of answer spans
}

// NewCell returns a cell that starts as its prior.
func NewCell(opt Options, prior cascade.Logistic) *Cell {
	c := &Cell{opt: opt, tauFactor: 1}
	c.setPrior(prior)
	c.fit = clone(prior)
	return c
}

func clone(l cascade.Logistic) cascade.Logistic {
	return cascade.Logistic{Bias: l.Bias, W: append([]float64(nil), l.W...)}
}

func (c *Cell) setPrior(p cascade.Logistic) {
	c.prior = clone(p)
	if len(c.grad2) != len(p.W)+1 {
		c.grad2 = make([]float64, len(p.W)+1)
	}
}

// P is the probability that an answer with features x is right.
func (c *Cell) P(x []float64) float64 {
	if c.UsesIsotonic() {
		return c.iso.At(c.fit.P(x))
	}
	return c.fit.P(x)
}

// Logistic returns the current Platt fit.
func (c *Cell) Logistic() cascade.Logistic { return clone(c.fit) }

// UsesIsotonic reports whether the cell has at least 1,000 effective labels and
// isotonic regression predicted them better, by more than one standard error,
// before it saw them.
func (c *Cell) UsesIsotonic() bool {
	if c.iso == nil || c.isoN < 1000 || c.effective < 1000 {
		return false
	}
	mean := c.isoWins / c.isoN
	se := math.Sqrt(math.Max(0, c.isoSquares/c.isoN-mean*mean) / c.isoN)
	return mean > se
}

// Observe adds a label y in [0, 1] for features x, seen with the given
// propensity (1 when the label was certain to be seen). answer says that the
// features are of the answer's span alone.
func (c *Cell) Observe(x []float64, y, propensity float64, answer bool) {
	if !(propensity > 0) || math.IsNaN(y) || len(x) != len(c.fit.W) {
		return
	}
	w := math.Min(c.opt.MaxWeight, 1/propensity)
	c.score(x, y, w)
	c.seq++
	l := label{x: append([]float64(nil), x...), y: y, w: w, seq: c.seq, answer: answer}
	if len(c.labels) < c.opt.Capacity {
		c.labels = append(c.labels, l)
	} else {
		c.labels[c.next] = l
		c.next = (c.next + 1) % c.opt.Capacity
	}
	c.fresh++
	if c.fresh >= max(c.opt.RefitMin, int(c.opt.RefitShare*float64(len(c.labels)))) {
		c.Refit()
		return
	}
	c.nudge(x, y, w)
}

// score compares both calibrators on a label that neither has seen.
func (c *Cell) score(x []float64, y, w float64) {
	if c.iso == nil {
		return
	}
	p := c.fit.P(x)
	d := w * (loss(p, y) - loss(c.iso.At(p), y))
	c.isoWins += d
	c.isoSquares += d * d
	c.isoN++
}

func loss(p, y float64) float64 {
	p = math.Max(1e-6, math.Min(1-1e-6, p))
	return -y*math.Log(p) - (1-y)*math.Log(1-p)
}

// nudge is one diagonal AdaGrad step towards the label. The squared gradients
// of the labels already fitted are in the sum, so a step is small.
func (c *Cell) nudge(x []float64, y, w float64) {
	d := w * (y - c.fit.P(x))
	c.fit.Bias += c.step(0, d)
	for i := range c.fit.W {
		c.fit.W[i] += c.step(i+1, d*x[i])
	}
	c.floor()
}

func (c *Cell) step(i int, gradient float64) float64 {
	c.grad2[i] += gradient * gradient
	return c.opt.Step * gradient / math.Sqrt(c.opt.Tau+c.grad2[i])
}

func (c *Cell) floor() {
	if len(c.fit.W) > 0 {
		c.fit.W[0] = math.Max(slopeFloor, c.fit.W[0])
	}
}

// Refit fits the calibrators to all labels kept.
func (c *Cell) Refit() {
	c.fresh = 0
	clear(c.grad2)
	x, y, w := c.data()
	c.effective = effective(w)
	c.answers = effective(c.ofAnswers(w))
	if len(y) == 0 {
		c.fit = clone(c.prior)
		return
	}
	d := len(c.prior.W)
	c.fit = cascade.RefitLogistic(&c.fit, x, d, y, w, &c.prior, c.opt.Tau*c.tauFactor)
	c.fit.FloorSlope(slopeFloor, x, d, y, w)
	p := make([]float64, len(y))
	for i := range p {
		row := x[i*d : (i+1)*d]
		p[i] = c.fit.P(row)
		g := w[i] * (y[i] - p[i])
		c.grad2[0] += g * g
		for j, v := range row {
			c.grad2[j+1] += g * v * g * v
		}
	}
	if len(y) >= 500 {
		c.iso = FitIsotonic(p, y, w)
	}
}

// data returns the labels kept with their weights, aged.
func (c *Cell) data() (x, y, w []float64) {
	for i := range c.labels {
		l := &c.labels[i]
		x = append(x, l.x...)
		y = append(y, l.y)
		w = append(w, l.w*math.Exp2((l.seq-c.seq)/c.opt.HalfLife))
	}
	return x, y, w
}

// ofAnswers are the weights of the labels of answer spans.
func (c *Cell) ofAnswers(w []float64) []float64 {
	var of []float64
	for i := range c.labels {
		if c.labels[i].answer {
			of = append(of, w[i])
		}
	}
	return of
}

// Effective is the effective number of labels at the last refit,
// (sum w)^2 / sum w^2.
func (c *Cell) Effective() float64 { return c.effective }

func effective(w []float64) float64 {
	sum, square := 0.0, 0.0
	for _, v := range w {
		sum += v
		square += v * v
	}
	if square == 0 {
		return 0
	}
	return sum * sum / square
}

// Drifted shrinks the cell to its prior until the next fingerprint change or
// Settled: after an alarm old labels say less.
func (c *Cell) Drifted() { c.tauFactor = driftedTau; c.Refit() }

// driftedTau is how much more the prior holds a cell that drifted.
const driftedTau = 2

// Settled ends what Drifted began.
func (c *Cell) Settled() { c.tauFactor = 1 }

// Replace is told that the model under the cell changed: what was learned
// stays at a tenth of its weight.
func (c *Cell) Replace() {
	for i := range c.labels {
		c.labels[i].w *= .1
	}
	c.iso, c.isoWins, c.isoSquares, c.isoN = nil, 0, 0, 0
	c.Refit()
}
