package plan

import "math"

// Objective is what a plan evens out over devices.
type Objective int

const (
	// Tokens balances tokens per device: right while compute is the limit.
	Tokens Objective = iota
	// Activated balances distinct experts that a step touches per device:
	// right while reading weights is the limit, as in decode with few tokens
	// per expert (METRO, arXiv 2512.09277).
	Activated
)

// String is the name used in flags and files.
func (o Objective) String() string {
	if o == Activated {
		return "activated"
	}
	return "tokens"
}

// Regime chooses the objective: tokens per activated expert and step below
// the device's ridge point (FLOP/s over bytes/s, halved for two-byte weights)
// mean that reading weights takes longer than using them.
func Regime(load []float64, stepTokens, topK int, ridge float64) Objective {
	active := 0.0
	for _, a := range activation(load, stepTokens, topK) {
		active += a
	}
	if active > 0 && float64(stepTokens*topK)/active < ridge {
		return Activated
	}
	return Tokens
}

// activation turns loads into the expected number of devices that run each
// expert in one step of stepTokens tokens: the chance 1-(1-p)^T that any token
// wants it, p its share of tokens. A router that sends all tokens of an expert
// in a step to one replica runs it once, so r replicas share that chance and
// the even split of the token objective holds here too.
func activation(load []float64, stepTokens, topK int) []float64 {
	sum := 0.0
	for _, w := range load {
		sum += w
	}
	out := make([]float64, len(load))
	if sum <= 0 {
		return out
	}
	for e, w := range load {
		p := min(1, w/sum*float64(topK))
		out[e] = 1 - math.Pow(1-p, float64(stepTokens))
	}
	return out
}
