package learn

import (
	"math"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
)

// MaxCells bounds the cells that are alive; beyond it the least recently
// labelled one is dropped and its traffic falls back to the prior.
const MaxCells = 256

// Outcome is one decision with its label, as far as one was seen.
type Outcome struct {
	Cell       string
	X          []float64 // features of the edge's signals, in the table's order
	Edge       float64   // 1 the edge was right, 0 wrong, or a score
	Cloud      float64   // the same for the cloud; 1 when the label is agreement
	CloudKnown bool
	Propensity float64
}

// Table holds the cells of one edge model. It has one owner.
type Table struct {
	// Features names the values of Outcome.X.
	Features    []cascade.Feature
	Fingerprint string

	opt   Options
	prior cascade.Logistic
	cloud Quality
	cells map[string]*entry
	tick  uint64
}

type entry struct {
	*Cell
	cloud  Quality
	used   uint64
	drift  *control.PageHinkley
	shadow *Shadow
	sample []benefit // ring of the latest outcomes with both sides known
	next   int
}

type benefit struct {
	gain, weight float64
	helps        bool
}

const benefitSamples = 2000

// NewTable returns an empty table. The first feature's prior weight is 1, the
// bias 0: the raw log-odds are believed until labels say otherwise.
func NewTable(opt Options, fingerprint string, features ...cascade.Feature) *Table {
	prior := cascade.Logistic{W: make([]float64, len(features))}
	if len(features) > 0 {
		prior.W[0] = 1
	}
	return &Table{Features: features, Fingerprint: fingerprint, opt: opt, prior: prior, cells: map[string]*entry{}}
}

// SetPrior installs a prior, for example the shipped calibration's or the one
// that the control plane merged. Cells follow at their next refit.
func (t *Table) SetPrior(p cascade.Logistic) {
	if len(p.W) != len(t.Features) {
		return
	}
	t.prior = clone(p)
	for _, e := range t.cells {
		e.setPrior(p)
	}
}

// Prior returns the current prior.
func (t *Table) Prior() cascade.Logistic { return clone(t.prior) }

// Len is the number of cells alive.
func (t *Table) Len() int { return len(t.cells) }

// Observe learns from an outcome and reports whether the cell's calibration
// residual has drifted.
func (t *Table) Observe(o Outcome) (drifted bool) {
	if len(o.X) != len(t.Features) || !(o.Propensity > 0) {
		return false
	}
	e := t.entry(o.Cell)
	w := math.Min(t.opt.MaxWeight, 1/o.Propensity)
	p := e.P(o.X)
	if o.CloudKnown {
		e.keep(benefit{gain: e.cloud.Mean(t.cloud.Mean(1)) - p, weight: w, helps: o.Cloud > o.Edge})
		e.cloud.Observe(o.Cloud, w)
		t.cloud.Observe(o.Cloud, w)
	}
	e.Cell.Observe(o.X, o.Edge, o.Propensity)
	if e.drift.Observe(o.Edge - p) {
		e.Drifted()
		e.shadow.Drifted()
		return true
	}
	if e.drift.Ready() {
		e.Settled()
	}
	return false
}

func (t *Table) entry(name string) *entry {
	t.tick++
	e, ok := t.cells[name]
	if !ok {
		if len(t.cells) >= MaxCells {
			t.evict()
		}
		e = &entry{Cell: NewCell(t.opt, t.prior), drift: control.NewPageHinkley(), shadow: NewShadow()}
		t.cells[name] = e
	}
	e.used = t.tick
	return e
}

func (t *Table) evict() {
	oldest, name := uint64(math.MaxUint64), ""
	for n, e := range t.cells {
		if e.used < oldest {
			oldest, name = e.used, n
		}
	}
	delete(t.cells, name)
}

func (e *entry) keep(b benefit) {
	if len(e.sample) < benefitSamples {
		e.sample = append(e.sample, b)
		return
	}
	e.sample[e.next] = b
	e.next = (e.next + 1) % benefitSamples
}

// ShadowShare is the probability with which the next kept answer of the cell
// is labelled in the shadow; see Shadow.Share.
func (t *Table) ShadowShare(cell string, excluded bool) float64 {
	e := t.entry(cell)
	return e.shadow.Share(e.Effective(), excluded)
}

// Stats returns the statistics of all cells, for the control plane.
func (t *Table) Stats() []Stats {
	var out []Stats
	for name, e := range t.cells {
		s := e.Cell.Stats(name)
		s.Cloud = e.cloud
		out = append(out, s)
	}
	return out
}

// Replace is told that the edge model changed.
func (t *Table) Replace(fingerprint string) {
	if fingerprint == t.Fingerprint {
		return
	}
	t.Fingerprint = fingerprint
	for _, e := range t.cells {
		e.Replace()
		e.drift.Reset()
		e.sample, e.next = nil, 0
	}
}

// View is what readers need of one cell: an immutable value.
type View struct {
	Calibration  cascade.Calibration
	CloudQuality float64
	Grade        Grade
	Effective    float64
}

// View returns the current view of a cell; an unknown cell has the prior's.
func (t *Table) View(cell string) View {
	v := View{CloudQuality: t.cloud.Mean(1), Grade: GradeUnknown}
	fit := t.prior
	if e, ok := t.cells[cell]; ok {
		fit = e.fit
		v.CloudQuality = e.cloud.Mean(v.CloudQuality)
		v.Effective = e.Effective()
		v.Grade = e.grade()
	}
	v.Calibration = cascade.Calibration{
		Version: 1, Fingerprint: t.Fingerprint, LabelKind: "agreement", Samples: int(v.Effective),
		Bias: fit.Bias, CloudAccuracy: v.CloudQuality, Threshold: .5,
	}
	for i, f := range t.Features {
		v.Calibration.Terms = append(v.Calibration.Terms, cascade.Term{Feature: f, Weight: fit.W[i]})
	}
	return v
}

func (e *entry) grade() Grade {
	gain, helps, w := make([]float64, len(e.sample)), make([]bool, len(e.sample)), make([]float64, len(e.sample))
	for i, b := range e.sample {
		gain[i], helps[i], w[i] = b.gain, b.helps, b.weight
	}
	g, _, _ := Viability(gain, helps, w)
	return g
}

// Predict returns what the table expects of an answer with features x in a
// cell: the probability that the edge is right, and that the cloud is.
func (t *Table) Predict(cell string, x []float64) (edge, cloud float64) {
	cloud = t.cloud.Mean(1)
	e, ok := t.cells[cell]
	if !ok {
		return t.prior.P(x), cloud
	}
	return e.P(x), e.cloud.Mean(cloud)
}
