package cascade

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Prefix judges the beginning of an answer that goes on. It is fitted on
// beginnings, because the product of the probabilities only falls as an answer
// grows: the calibration of whole answers would call every beginning good.
type Prefix struct {
	// Tokens and WaitMS are the hold-back window that the model should have: as
	// many tokens, or as many milliseconds, whichever is over first.
	Tokens int     `json:"tokens"`
	WaitMS int     `json:"wait_ms"`
	Bias   float64 `json:"bias"`
	Terms  []Term  `json:"terms"`
	// PhiMean and PhiSD are those of Phi over the tokens of right answers: the
	// CUSUM alarm measures against them.
	PhiMean float64 `json:"phi_mean"`
	PhiSD   float64 `json:"phi_sd"`
	// Plain says that it was fitted on plain text, though the calibration of whole
	// answers is one of answer spans.
	Plain bool `json:"plain,omitempty"`
}

// Wait is WaitMS.
func (p *Prefix) Wait() time.Duration { return time.Duration(p.WaitMS) * time.Millisecond }

// TokenSample is one labelled answer, token by token.
type TokenSample struct {
	LogProbs []float64
	Right    float64
}

// prefixCuts are the beginnings fitted on, in eighths of the window.
var prefixCuts = [...]int{1, 2, 4, 6, 8}

// FitPrefix fits a Prefix for a window of so many tokens, on the beginnings of
// those answers that go on. ErrFit where too few are that long.
func FitPrefix(answers []TokenSample, tokens int) (Prefix, error) {
	var samples []Sample
	n, sum, square := 0.0, 0.0, 0.0
	for _, a := range answers {
		var acc Accumulator
		cut := 0
		for i, lp := range a.LogProbs {
			for cut < len(prefixCuts) && i == tokens*prefixCuts[cut]/8 {
				if i > 0 {
					samples = append(samples, Sample{Signals: acc.Signals(), Right: a.Right})
				}
				cut++
			}
			acc.Add(lp, math.NaN())
			if a.Right >= .5 {
				phi := Phi(lp)
				n, sum, square = n+1, sum+phi, square+phi*phi
			}
		}
	}
	c, err := FitPlatt(samples, FeatureProduct, FeatureTokens)
	if err != nil {
		return Prefix{}, fmt.Errorf("beginnings of answers: %w", err)
	}
	mean := sum / n
	return Prefix{Tokens: tokens, WaitMS: 400, Bias: c.Bias, Terms: c.Terms, PhiMean: mean, PhiSD: math.Sqrt(math.Max(0, square/n-mean*mean))}, nil
}

// PrefixProbability is the probability that an answer that begins with these
// signals will be right. ok is false where nothing is known of beginnings, and
// for signals that are not usable.
func (c *Calibration) PrefixProbability(s *Signals) (p float64, ok bool) {
	if c == nil || c.Prefix == nil || !c.scores(s) || c.Prefix.Plain && !s.Spans.Plain() {
		return 0, false
	}
	return platt(c.Prefix.Bias, c.Prefix.Terms, s)
}

func (p *Prefix) validate() error {
	if p == nil {
		return nil
	}
	if p.Tokens < 1 || p.Tokens > 4096 || p.WaitMS < 0 || p.WaitMS > 10_000 {
		return errors.New("calibration: prefix: want 1 to 4096 tokens and a wait_ms of 0 to 10000")
	}
	if !finite(p.PhiMean) || !finite(p.PhiSD) || p.PhiSD < 0 {
		return errors.New("calibration: prefix: phi_mean and phi_sd must be finite, phi_sd not negative")
	}
	if len(p.Terms) == 0 || len(p.Terms) > 8 || !finite(p.Bias) {
		return errors.New("calibration: prefix: want a finite bias and 1 to 8 terms")
	}
	return validTerms(p.Terms)
}
