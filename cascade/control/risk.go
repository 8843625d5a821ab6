package control

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrInfeasible says that a risk target cannot be met within the budget.
var ErrInfeasible = errors.New("risk target is infeasible")

// MinAlpha is the least risk that a window of n labels can show with
// probability 1-delta when none of them is a loss.
func MinAlpha(n int, delta float64) float64 { return 1 - math.Pow(delta, 1/float64(n)) }

// MinRiskItems is the least calibration window for a risk bound.
const MinRiskItems = 200

// RiskItem is one labelled request: its score (a gain; escalate when above
// theta), the loss in [0, 1] if it is kept, and the weight 1/propensity of its
// label (0 counts as 1).
type RiskItem struct {
	Score, Loss, Weight float64
}

// Bound is a threshold with what is known of its risk. The bounds hold only
// while traffic stays exchangeable with the calibration window.
type Bound struct {
	Theta    float64 // escalate scores above it
	Escalate float64 // share of the window above it
	Risk     float64 // mean loss of the window at Theta
	UCB      float64 // upper confidence bound of the risk; for CRC the mean bound
	Items    int
}

// CRC returns the threshold with the fewest escalations for which the expected
// loss is at most alpha (conformal risk control, Angelopoulos et al. 2022):
// n/(n+1) R + 1/(n+1) <= alpha. It holds in the mean, not for one window.
func CRC(items []RiskItem, alpha float64) (Bound, error) {
	w, err := newWalk(items)
	if err != nil {
		return Bound{}, err
	}
	n := float64(len(items))
	return w.run(alpha, func(loss, _ float64) float64 { return (loss + 1) / (n + 1) }, nil)
}

// LTT returns the threshold with the fewest escalations for which the loss is
// at most alpha with probability 1-delta (learn then test, Angelopoulos et al.
// 2021): it walks from full escalation downwards and stops at the first upper
// bound above alpha. Equal weights and losses 0 or 1 use Clopper-Pearson,
// others the empirical Bernstein bound of Maurer and Pontil 2009.
func LTT(items []RiskItem, alpha, delta float64) (Bound, error) {
	w, err := newWalk(items)
	if err != nil {
		return Bound{}, err
	}
	n := len(items)
	if !w.binary {
		return w.run(alpha, func(loss, square float64) float64 {
			return bernsteinUpper(loss/float64(n), square/float64(n), n, w.maxWeight, delta)
		}, nil)
	}
	// The bound of k losses is within alpha where k or fewer of n have at most
	// the probability delta at a risk of alpha: one more term for each loss.
	tail := newBinomialTail(n, alpha)
	return w.run(alpha,
		func(loss, _ float64) float64 { return ClopperPearsonUpper(int(math.Round(loss)), n, delta) },
		func(loss, _ float64) bool { return tail.upTo(int(math.Round(loss))) <= delta })
}

// walk holds the items by rising score: the order in which they are kept.
type walk struct {
	items     []RiskItem
	binary    bool
	maxWeight float64
}

func newWalk(items []RiskItem) (*walk, error) {
	if len(items) < MinRiskItems {
		return nil, fmt.Errorf("risk control needs %d labelled requests, there are %d", MinRiskItems, len(items))
	}
	w := &walk{items: slices.Clone(items), binary: true}
	total := 0.0
	for i := range w.items {
		it := &w.items[i]
		if it.Weight <= 0 {
			it.Weight = 1
		}
		total += it.Weight
		w.binary = w.binary && (it.Loss == 0 || it.Loss == 1) && it.Weight == w.items[0].Weight
	}
	for i := range w.items { // mean weight one
		w.items[i].Weight *= float64(len(items)) / total
		w.maxWeight = math.Max(w.maxWeight, w.items[i].Weight)
	}
	slices.SortFunc(w.items, func(a, b RiskItem) int { return cmp.Compare(a.Score, b.Score) })
	return w, nil
}

// run keeps items in order while upper(sum of losses, sum of their squares) of
// the kept stays within alpha. It is ErrInfeasible when even full escalation
// fails. within, where it is given, tells more cheaply than upper whether a
// rising sum stays within alpha.
func (w *walk) run(alpha float64, upper func(loss, square float64) float64, within func(loss, square float64) bool) (Bound, error) {
	n := float64(len(w.items))
	best := Bound{Theta: math.Inf(-1), Escalate: 1, UCB: upper(0, 0), Items: len(w.items)}
	if best.UCB > alpha {
		return Bound{}, fmt.Errorf("%w: %d labels bound the risk only by %.3f, target %.3f: collect more labels or raise it",
			ErrInfeasible, len(w.items), best.UCB, alpha)
	}
	if within == nil {
		within = func(loss, square float64) bool { return upper(loss, square) <= alpha }
	}
	loss, square, kept, lastLoss := 0.0, 0.0, 0.0, 0.0
	bestLoss, bestSquare := 0.0, 0.0
	for i := 0; i < len(w.items); {
		j := i
		for ; j < len(w.items) && w.items[j].Score == w.items[i].Score; j++ {
			l := w.items[j].Weight * w.items[j].Loss
			loss += l
			square += l * l
			kept += w.items[j].Weight
		}
		if loss != lastLoss && !within(loss, square) {
			break
		}
		lastLoss, bestLoss, bestSquare = loss, loss, square
		best.Theta, best.Escalate = w.items[i].Score, 1-kept/n
		i = j
	}
	best.Risk, best.UCB = bestLoss/n, upper(bestLoss, bestSquare)
	return best, nil
}

// ClopperPearsonUpper is the exact upper confidence bound (level 1-delta) of a
// binomial probability after k successes in n trials.
func ClopperPearsonUpper(k, n int, delta float64) float64 {
	if k >= n {
		return 1
	}
	lo, hi := float64(k)/float64(n), 1.0
	for range 60 {
		mid := (lo + hi) / 2
		if binomialCDF(k, n, mid) > delta {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

func binomialCDF(k, n int, p float64) float64 {
	if p <= 0 {
		return 1
	}
	if p >= 1 {
		return 0
	}
	return newBinomialTail(n, p).upTo(k)
}

// binomialTail is the probability of at most k successes in n trials of
// probability p, for rising k.
type binomialTail struct {
	n, next   int
	odds, log float64 // log odds of p; log probability of exactly next
	sum       float64 // probability of fewer than next
}

func newBinomialTail(n int, p float64) *binomialTail {
	p = math.Min(p, 1-1e-12)
	return &binomialTail{n: n, odds: math.Log(p) - math.Log1p(-p), log: float64(n) * math.Log1p(-p)}
}

func (b *binomialTail) upTo(k int) float64 {
	for ; b.next <= min(k, b.n); b.next++ {
		b.sum += math.Exp(b.log)
		b.log += math.Log(float64(b.n-b.next)) - math.Log(float64(b.next+1)) + b.odds
	}
	return math.Min(1, b.sum)
}

// bernsteinUpper bounds a mean of n values in [0, b] by their mean and mean
// square.
func bernsteinUpper(mean, square float64, n int, b, delta float64) float64 {
	nf := float64(n)
	variance := math.Max(0, square-mean*mean) * nf / (nf - 1)
	l := math.Log(2 / delta)
	return mean + math.Sqrt(2*variance*l/nf) + 7*b*l/(3*(nf-1))
}

// FeasibleRate is the least share that must be escalated when the loss is any
// disagreement with the cloud and the edge disagrees on the share mu: at least
// (mu-alpha)/(1-alpha). Source: conformal abstention bound, arXiv 2606.29054.
func FeasibleRate(mu, alpha float64) float64 {
	if mu <= alpha || alpha >= 1 {
		return 0
	}
	return (mu - alpha) / (1 - alpha)
}

// CheckFeasible is asked when a policy is configured: it returns ErrInfeasible
// with the numbers when the risk alpha needs more escalations than maxRate.
func CheckFeasible(mu, alpha, maxRate float64) error {
	if need := FeasibleRate(mu, alpha); need > maxRate {
		return fmt.Errorf("%w: base risk %.3f and target %.3f need at least %.1f %% escalations, the budget allows %.1f %%",
			ErrInfeasible, mu, alpha, 100*need, 100*maxRate)
	}
	return nil
}

// RiskTracker moves a threshold online so that the mean loss of labelled
// requests tends to Alpha: too much loss lowers theta, which escalates more.
type RiskTracker struct {
	Alpha float64
	// Step is the size of a move; 0 counts as .02. MaxWeight caps 1/propensity;
	// 0 counts as 20.
	Step, MaxWeight float64

	theta  float64
	frozen bool
}

// NewRiskTracker starts at the theta of an offline bound.
func NewRiskTracker(alpha, theta float64) *RiskTracker {
	return &RiskTracker{Alpha: alpha, theta: theta}
}

// Theta is the current threshold.
func (t *RiskTracker) Theta() float64 { return t.theta }

// Observe notes the loss of one request and the propensity of its label. A
// request without a label has loss 0 and propensity 1: the weights of the
// labelled ones make up for it. A frozen tracker ignores all.
func (t *RiskTracker) Observe(loss, propensity float64) {
	if t.frozen || !(propensity > 0) {
		return
	}
	t.move(t.weight(propensity)*loss - t.Alpha)
}

func (t *RiskTracker) weight(propensity float64) float64 {
	limit := t.MaxWeight
	if limit <= 0 {
		limit = 20
	}
	return math.Min(limit, 1/propensity)
}

func (t *RiskTracker) move(excess float64) {
	step := t.Step
	if step <= 0 {
		step = .02
	}
	t.theta = math.Max(-16, math.Min(16, t.theta-step*excess))
}

// Label notes the loss of a request that was observed without a label before.
func (t *RiskTracker) Label(loss, propensity float64) {
	if !t.frozen && propensity > 0 {
		t.move(t.weight(propensity) * loss)
	}
}

// Freeze holds theta at the value of a bound, after a drift alarm, until Thaw.
func (t *RiskTracker) Freeze(theta float64) { t.theta, t.frozen = theta, true }

// Frozen reports whether theta is held.
func (t *RiskTracker) Frozen() bool { return t.frozen }

// Thaw lets the tracker move again.
func (t *RiskTracker) Thaw() { t.frozen = false }
