package learn

import (
	"math"
	"slices"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/verifier"
)

// MaxCells bounds the cells that are alive; beyond it the least recently used
// one is dropped and its traffic falls back to the prior.
const MaxCells = 256

// Outcome is one decision with its label, as far as one was seen.
type Outcome struct {
	Cell       string
	X          []float64 // features of the edge's signals, in the table's order
	Edge       float64   // 1 the edge was right, 0 wrong, or a score
	Cloud      float64   // the same for the cloud; 1 when the label is agreement
	CloudKnown bool
	Propensity float64
	Answer     bool            // X is of the answer's span alone
	Votes      *verifier.Votes // of the edge on its own answer; nil where it was not asked
}

// Table holds the cells of one edge model. It has one owner.
type Table struct {
	// Features names the values of Outcome.X.
	Features    []cascade.Feature
	Fingerprint string

	opt     Options
	base    cascade.Logistic     // where the prior started: the shipped calibration, or the raw log-odds
	shipped *cascade.Calibration // what base was taken from; nil for the raw log-odds
	prior   cascade.Logistic
	cloud   Quality
	cells   map[string]*entry
	tick    uint64
}

type entry struct {
	*Cell
	cloud  Quality
	edge   Quality
	helps  Quality // share of answers on which escalation helps
	used   uint64
	drift  drifts
	alarms uint64
	shadow *Shadow
	error  reliability
	graded Grade
	sample []benefit // ring of the latest outcomes with both sides known
	next   int
	voted  *verifier.Table // labels with votes; nil before the first
}

// benefit is one outcome with both sides known: what was predicted of the edge
// before the label was seen, and whether escalation helped.
type benefit struct {
	p, weight float64
	helps     bool
}

const benefitSamples = 2000

// NewTable returns an empty table. The first feature's prior weight is 1, the
// bias 0: the raw log-odds are believed until labels say otherwise.
func NewTable(opt Options, fingerprint string, features ...cascade.Feature) *Table {
	t := &Table{Features: features, Fingerprint: fingerprint, opt: opt, cells: map[string]*entry{}}
	t.base = raw(len(features))
	t.prior = clone(t.base)
	return t
}

func raw(features int) cascade.Logistic {
	l := cascade.Logistic{W: make([]float64, features)}
	if features > 0 {
		l.W[0] = 1
	}
	return l
}

func (t *Table) newEntry() *entry {
	return &entry{Cell: NewCell(t.opt, t.prior), drift: newDrifts(), shadow: NewShadow(), graded: GradeUnknown}
}

// Ship starts the prior from a calibration that was fitted on labels, with the
// table's features. Without one cells are believed once they have labels of
// their own. A prior that was merged from the same start stays. It reports false,
// and does nothing, when the features are others. c must not change afterwards.
func (t *Table) Ship(c *cascade.Calibration) bool {
	base := cascade.Logistic{Bias: c.Bias, W: make([]float64, len(c.Terms))}
	if len(c.Terms) != len(t.Features) {
		return false
	}
	for i, term := range c.Terms {
		if term.Feature != t.Features[i] {
			return false
		}
		base.W[i] = term.Weight
	}
	merged := slices.Equal(base.Values(), t.base.Values())
	t.base, t.shipped = base, c
	if !merged {
		t.SetPrior(base)
	}
	return true
}

// SetPrior installs a prior, for example the one that the control plane merged.
// Cells follow at their next refit.
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

// Pass notes a judged answer with features x before any label of it, and
// reports a change of the signal itself.
func (t *Table) Pass(cell string, x []float64) Drift {
	if len(x) != len(t.Features) || len(x) == 0 {
		return ""
	}
	e := t.entry(cell)
	e.shadow.Pass()
	if e.drift.signal.Observe(x[0]) {
		return e.alarm(DriftSignal)
	}
	return ""
}

// Alarmed reports whether a drift alarm of the cell is being looked into.
func (t *Table) Alarmed(cell string) bool {
	e, ok := t.cells[cell]
	return ok && e.shadow.Alarmed()
}

// Observe learns from an outcome and names the stream that has drifted, if one
// has.
func (t *Table) Observe(o Outcome) Drift {
	if len(o.X) != len(t.Features) || !(o.Propensity > 0) {
		return ""
	}
	e := t.entry(o.Cell)
	w := math.Min(t.opt.MaxWeight, 1/o.Propensity)
	p := e.P(o.X)
	if o.CloudKnown {
		e.keep(benefit{p: p, weight: w, helps: o.Cloud > o.Edge})
		e.cloud.Observe(o.Cloud, w)
		e.helps.Observe(math.Max(0, o.Cloud-o.Edge), w)
		t.cloud.Observe(o.Cloud, w)
	}
	if o.Votes != nil && o.CloudKnown {
		e.vote(*o.Votes, verifier.StateOf(o.Edge >= .5, o.Cloud >= .5), w, t.opt.HalfLife)
	}
	e.edge.Observe(o.Edge, w)
	e.error.observe(p, o.Edge, w)
	e.Cell.Observe(o.X, o.Edge, o.Propensity, o.Answer)
	if e.fresh == 0 { // it was refitted
		e.graded = e.grade()
	}
	return e.drifted(o, p)
}

func (e *entry) drifted(o Outcome, p float64) Drift {
	if e.drift.residual.Observe(o.Edge - p) {
		return e.alarm(DriftResidual)
	}
	if o.Propensity == 1 && e.drift.disagreement.Observe(o.Edge) {
		return e.alarm(DriftDisagreement)
	}
	if e.drift.residual.Ready() {
		e.Settled()
	}
	return ""
}

func (t *Table) entry(name string) *entry {
	t.tick++
	e, ok := t.cells[name]
	if !ok {
		if len(t.cells) >= MaxCells {
			t.evict()
		}
		e = t.newEntry()
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

// Replace is told that the edge model changed: what was learned stays at a
// tenth of its weight, and the prior belongs to the old model.
func (t *Table) Replace(fingerprint string) {
	if fingerprint == t.Fingerprint {
		return
	}
	t.Fingerprint, t.shipped = fingerprint, nil
	t.base = raw(len(t.Features))
	t.SetPrior(t.base)
	for _, e := range t.cells {
		e.Replace()
		e.drift.reset()
		e.sample, e.next, e.voted = nil, 0, nil
		e.helps, e.edge, e.error, e.graded = Quality{}, Quality{}, reliability{}, GradeUnknown
	}
}
