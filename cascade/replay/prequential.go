package replay

import (
	"math"
	"time"

	"github.com/weirhq/weir/cascade/control"
	settings "github.com/weirhq/weir/cascade/policy"
)

// reboundEvery is how many rows lie between two bounds of the risk, as on a node.
const reboundEvery = 50

// riskWindow bounds the risk of a stream as it runs: each row is decided by a
// bound on rows before it.
type riskWindow struct {
	alpha, delta float64
	items        []control.RiskItem
	seen         int
}

// theta is the threshold for the next row; one that cannot be bettered stays.
// Until there are labels enough for a bound all rows are escalated.
func (w *riskWindow) theta(last float64, known bool) (float64, bool) {
	if w.seen < control.MinRiskItems || w.seen%reboundEvery != 0 {
		return last, known
	}
	b, err := control.LTT(w.items, w.alpha, w.delta)
	if err != nil {
		return last, known
	}
	return b.Theta, true
}

// add takes the row that was decided last.
func (w *riskWindow) add(it control.RiskItem) {
	if w.seen++; len(w.items) < settings.RiskWindow {
		w.items = append(w.items, it)
		return
	}
	w.items[(w.seen-1)%settings.RiskWindow] = it
}

// remaining is what the edge's pass leaves of a deadline; never zero, which
// would be no deadline.
func remaining(deadlineMS, edgeMS float64) time.Duration {
	if math.IsNaN(edgeMS) {
		edgeMS = 0
	}
	if edgeMS >= deadlineMS {
		return -1
	}
	return max(1, time.Duration((deadlineMS-edgeMS)*float64(time.Millisecond)))
}

// cloudP90 is the 90 % quantile of the cloud's time on the rows, 0 where none
// tells it.
func cloudP90(d *Data, rows []int) time.Duration {
	ms := quantile(column(d, rows, func(r *Record) float64 { return r.CloudMS }), .9)
	return time.Duration(min(ms, maxDeadlineMS) * float64(time.Millisecond))
}
