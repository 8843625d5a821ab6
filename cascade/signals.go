package cascade

import "math"

// Bins of the log-odds histogram from which quantiles are read.
const (
	phiBins = 24
	phiLow  = -12.0
	phiHigh = 16.0
)

// Signals are what the tokens of one span say about the answer. All
// log-probabilities are natural logarithms.
type Signals struct {
	// Usable is false when there is nothing to judge by: no token, a missing
	// or impossible log-probability. It is never read as confidence 0 or 1.
	Usable bool

	Tokens       int
	SumLogProb   float64 // log of the product of the token probabilities, end token included
	MinLogProb   float64
	MeanLogProb  float64
	FirstLogProb float64
	EWMALogProb  float64 // weight 1/16 on the newest token
	VarLogProb   float64
	Low          int // tokens with probability below one half

	Margins    int     // tokens for which a margin was given
	MinMargin  float64 // smallest lp1-lp2; meaningful when Margins > 0
	MeanMargin float64

	// Spans counts the tokens of all spans, the other numbers are of one.
	Spans SpanTokens

	Entropies   int
	MeanEntropy float64 // nats, over the renormalised top-k

	hist [phiBins]uint32
}

// Phi maps a log-probability to log-odds that are linear at both ends:
// -ln2-ln(1-p) for p >= 1/2 and ln2+ln p below. It spreads the saturated end,
// where most tokens of a good answer lie. lp is clipped to [-50, -1e-7].
// Source: mzelling/niagara.
func Phi(lp float64) float64 {
	lp = math.Max(-50, math.Min(-1e-7, lp))
	if lp >= -math.Ln2 {
		return -math.Ln2 - math.Log(-math.Expm1(lp))
	}
	return math.Ln2 + lp
}

// PhiQuantile returns the q-quantile (0 <= q <= 1) of Phi over the span's
// tokens, interpolated in a 24-bin histogram, and 0 without tokens.
func (s *Signals) PhiQuantile(q float64) float64 {
	if s.Tokens == 0 {
		return 0
	}
	const width = (phiHigh - phiLow) / phiBins
	need, seen := q*float64(s.Tokens), 0.0
	for i, n := range s.hist {
		c := float64(n)
		if c > 0 && seen+c >= need {
			return phiLow + width*(float64(i)+(need-seen)/c)
		}
		seen += c
	}
	return phiHigh
}
