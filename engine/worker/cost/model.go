// Package cost predicts how long a step of a runner takes: a piecewise linear
// model over what is in the step, fitted to measurements of the machine. The
// form is DistServe's and Niyama's (scheduling.md 2) with the attention of
// prompts told by pairs of tokens; the two pieces are small and large steps,
// because small ones are bound by memory and large ones by arithmetic.
package cost

// Step is what a step computes.
type Step struct {
	Decodes int `json:"decodes"` // sequences with one token
	Prefill int `json:"prefill"` // prompt tokens
	Context int `json:"context"` // tokens held by the decoding sequences, over all
	Pairs   int `json:"pairs"`   // for each prompt token the tokens before it, over all
}

// Tokens is the size of the step.
func (s Step) Tokens() int { return s.Decodes + s.Prefill }

// Piece predicts milliseconds = Fixed + PerDecode*Decodes + PerPrefill*Prefill +
// PerContext*Context + PerPair*Pairs, for steps of up to UpTo tokens.
type Piece struct {
	UpTo       int     `json:"up_to"` // tokens in the step; the last piece has no bound and says 0
	Fixed      float64 `json:"fixed_ms"`
	PerDecode  float64 `json:"per_decode_ms"`
	PerPrefill float64 `json:"per_prefill_ms"`
	PerContext float64 `json:"per_context_ms"`
	PerPair    float64 `json:"per_pair_ms"`
	Samples    int     `json:"samples"`
	// Residual is the mean absolute error over the samples, relative to their
	// mean.
	Residual float64 `json:"residual"`
}

// Model is a fitted machine.
type Model struct {
	Fingerprint string `json:"fingerprint"` // of the model that was measured
	Threads     int    `json:"threads,omitempty"`
	// HeldOut is the mean error on steps of shapes that were left out of the fit,
	// and Noise how far single steps were from the median of their shape, both
	// relative to the mean.
	HeldOut float64 `json:"held_out,omitempty"`
	Noise   float64 `json:"noise,omitempty"`
	Pieces  []Piece `json:"pieces"`
}

// poor is the error beyond which a model says little of its machine.
const poor = .5

// Poor reports whether what was measured does not tell how long steps take: the
// machine was doing something else.
func (m *Model) Poor() bool { return m.HeldOut > poor }

// Milliseconds predicts the time of a step.
func (m *Model) Milliseconds(s Step) float64 {
	for _, p := range m.Pieces {
		if p.UpTo == 0 || s.Tokens() <= p.UpTo {
			return p.Fixed + p.PerDecode*float64(s.Decodes) + p.PerPrefill*float64(s.Prefill) +
				p.PerContext*float64(s.Context) + p.PerPair*float64(s.Pairs)
		}
	}
	return 0
}
