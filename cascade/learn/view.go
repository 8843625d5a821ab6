package learn

import (
	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/verifier"
)

// believedFrom is the number of effective labels from which a cell may be
// graded, and believed where no calibration was shipped.
const believedFrom = 200

// View is what readers need of one cell: an immutable value.
type View struct {
	Calibration cascade.Calibration
	// Calibrated says that the calibration rests on labels: those of the
	// shipped one, or enough of the cell's own.
	Calibrated   bool
	CloudQuality float64
	EdgeQuality  float64 // mean over the labels; 1/2 without any
	Helps        float64 // share of answers on which escalation helps
	Grade        Grade
	Effective    float64 // labels at the last refit
	Shadow       float64 // share of kept answers to label
	Alarms       uint64  // drift alarms so far
	Alarmed      bool    // one of them is being looked into
	Error        float64 // calibration error of predictions made before their label; NaN without labels
	// Verifier reads the edge's votes on its own answers; nil without any labels of
	// them. They may change a verdict only where VerifierGrade is usable.
	Verifier      *verifier.Table
	VerifierGrade Grade
}

// View returns the current view of a cell; an unknown cell has the prior's.
func (t *Table) View(cell string) View {
	v := View{CloudQuality: t.cloud.Mean(1), EdgeQuality: .5, Grade: GradeUnknown, Calibrated: t.shipped != nil, Shadow: NewShadow().Start}
	fit := t.prior
	e, ok := t.cells[cell]
	var voted *verifier.Table
	if ok {
		fit, voted = e.fit, e.voted
		v.CloudQuality = e.cloud.Mean(v.CloudQuality)
		v.EdgeQuality, v.Helps = e.edge.Mean(.5), e.helps.Mean(0)
		v.Effective = e.Effective()
		v.Calibrated = v.Calibrated || v.Effective >= believedFrom
		v.Grade = e.graded
		v.Shadow, v.Alarms, v.Alarmed = e.shadow.Share(v.Effective), e.alarms, e.shadow.Alarmed()
		v.Error = e.error.ece()
	}
	v.Verifier = t.verifier(voted)
	v.VerifierGrade = gradeVotes(v.Verifier)
	v.Calibration = t.calibration(fit, v.Effective, v.CloudQuality)
	if ok && e.answers >= believedFrom {
		ofAnswers(&v.Calibration)
	}
	if ok && e.UsesIsotonic() {
		v.Calibration.Curve = e.iso
	}
	return v
}

// calibration is the shipped one with another fit, or one of its own.
func (t *Table) calibration(fit cascade.Logistic, labels, cloud float64) cascade.Calibration {
	c := cascade.Calibration{Version: 1, Fingerprint: t.Fingerprint, CloudAccuracy: cloud, Threshold: .5}
	if t.shipped != nil {
		c = *t.shipped
	}
	if labels > 0 || t.shipped == nil {
		c.LabelKind, c.Samples = "agreement", int(labels)
	}
	c.Bias, c.Terms = fit.Bias, make([]cascade.Term, len(t.Features))
	for i, f := range t.Features {
		c.Terms[i] = cascade.Term{Feature: f, Weight: fit.W[i]}
	}
	return c
}

// ofAnswers makes a calibration one of answer spans: enough labels of whatever the
// class's answers are have moved it. They are of whole answers: what was shipped of
// beginnings stays what it was fitted on.
func ofAnswers(c *cascade.Calibration) {
	if p := c.Prefix; p != nil && c.Scored != cascade.ScoredAnswer {
		plain := *p
		plain.Plain = true
		c.Prefix = &plain
	}
	c.Scored = cascade.ScoredAnswer
}

// Views returns the views of all cells.
func (t *Table) Views() map[string]View {
	all := make(map[string]View, len(t.cells))
	for name := range t.cells {
		all[name] = t.View(name)
	}
	return all
}

// grade tests the cell's signal. The cloud's quality is one number in a cell,
// so that the gain ranks as the edge's doubt does.
func (e *entry) grade() Grade {
	if e.Effective() < believedFrom {
		return GradeUnknown
	}
	gain, helps, w := make([]float64, len(e.sample)), make([]bool, len(e.sample)), make([]float64, len(e.sample))
	for i, b := range e.sample {
		gain[i], helps[i], w[i] = -b.p, b.helps, b.weight
	}
	g, _, _ := Viability(gain, helps, w)
	return g
}

// RiskItems returns the latest labelled answers of a cell for a risk bound.
// Scores are gains over a cloud that is always right: the edge's doubt.
func (t *Table) RiskItems(cell string) []control.RiskItem {
	e, ok := t.cells[cell]
	if !ok {
		return nil
	}
	items := make([]control.RiskItem, len(e.sample))
	for i, b := range e.sample {
		items[i] = control.RiskItem{Score: 1 - b.p, Weight: b.weight}
		if b.helps {
			items[i].Loss = 1
		}
	}
	return items
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
