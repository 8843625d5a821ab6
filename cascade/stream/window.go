// Package stream decides what a client sees of a streamed answer that may
// change tier. The first tokens are held back, so that an early change of mind
// is invisible; what was once shown is never taken back, contradicted or
// repeated. It is pure: the caller feeds events and carries out what it is told.
package stream

import (
	"math"
	"time"

	"github.com/weirhq/weir/cascade"
)

// WindowOptions size the hold-back window and its alarm.
type WindowOptions struct {
	// Tokens and Wait end the window, whichever comes first; zero is no bound.
	// Both zero: nothing is held. Whole holds the entire answer, as for a client
	// that does not stream, or for short answers.
	Tokens int
	Wait   time.Duration
	Whole  bool
	// Mean and SD of Phi over the tokens of right answers in this cell; without
	// an SD there is no alarm.
	Mean, SD float64
}

// wholeBelow is the limit of max_tokens up to which the whole answer is held.
const wholeBelow = 64

// ForRequest adapts the window to a request: an answer that is not streamed,
// or that is short anyway, is held whole. maxTokens 0 is unknown.
func (o WindowOptions) ForRequest(streamed bool, maxTokens int) WindowOptions {
	o.Whole = o.Whole || !streamed || (maxTokens > 0 && maxTokens <= wholeBelow)
	return o
}

// Off reports whether nothing is held.
func (o WindowOptions) Off() bool { return !o.Whole && o.Tokens == 0 && o.Wait == 0 }

// Window watches the tokens of an answer.
type Window struct {
	opt    WindowOptions
	tokens int
	sum    float64 // CUSUM of low-confidence tokens
}

// NewWindow returns an open window.
func NewWindow(o WindowOptions) *Window { return &Window{opt: o} }

// Token notes a token of the answer span and reports whether the alarm is
// raised: a run of tokens that are clearly worse than those of right answers
// (CUSUM with slack of half, alarm at five standard deviations). It then starts
// anew.
func (w *Window) Token(logprob float64) (alarm bool) {
	w.tokens++
	if !(w.opt.SD > 0) || math.IsNaN(logprob) {
		return false
	}
	w.sum = math.Max(0, w.sum+w.opt.Mean-cascade.Phi(logprob)-.5*w.opt.SD)
	if alarm = w.sum > 5*w.opt.SD; alarm {
		w.sum = 0
	}
	return alarm
}

// Over reports whether the window has ended, elapsed after the first token.
func (w *Window) Over(elapsed time.Duration) bool {
	o := &w.opt
	return o.Off() || !o.Whole && (o.Tokens > 0 && w.tokens >= o.Tokens || o.Wait > 0 && elapsed >= o.Wait)
}
