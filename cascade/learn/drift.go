package learn

import "github.com/weirhq/weir/cascade/control"

// Drift names the stream whose change raised an alarm; "" is none.
type Drift string

// The streams of a cell: the edge's log-odds, which needs no labels and is
// fast; its calibration residual; and the edge's score among the escalated.
const (
	DriftSignal       Drift = "signal"
	DriftResidual     Drift = "residual"
	DriftDisagreement Drift = "disagreement"
)

type drifts struct{ signal, residual, disagreement *control.PageHinkley }

func newDrifts() drifts {
	return drifts{control.NewPageHinkley(), control.NewPageHinkley(), control.NewPageHinkley()}
}

func (d *drifts) all() [3]*control.PageHinkley {
	return [3]*control.PageHinkley{d.signal, d.residual, d.disagreement}
}

func (d *drifts) reset() { *d = newDrifts() }

// alarm is told that a stream drifted: the calibrators shrink to their prior,
// more answers are labelled, and all three streams get a new reference.
func (e *entry) alarm(d Drift) Drift {
	e.Drifted()
	e.shadow.Drifted()
	e.drift.reset()
	e.alarms++
	return d
}
