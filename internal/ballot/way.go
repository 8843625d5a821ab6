package ballot

import (
	"errors"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/internal/openai"
)

// Way is how a model server is asked.
type Way uint8

// The ways, in the order in which they are tried.
const (
	Probs   Way = iota // by the probabilities of its likeliest tokens
	Samples            // by several samples
	Nowise             // it can neither
)

// mostKnown bounds the servers that are remembered.
const mostKnown = 64

// After so many questions in a row without an answer in time a model is left alone
// for a while, which doubles with each further one.
const (
	mostLate   = 3
	leastPause = time.Minute
	mostPause  = time.Hour
)

// Ways remembers by model how its server can be asked, and for how long it is to be
// left alone. The zero value is ready; it is safe for concurrent use.
type Ways struct {
	Patience time.Duration    // for which votes are waited for; 0 is Patience
	Now      func() time.Time // nil is time.Now

	mu sync.Mutex
	by map[string]known
}

// known is what is known of a model's server.
type known struct {
	way   Way
	late  int       // questions in a row without an answer in time
	until time.Time // it is left alone
}

// Waits is how long votes are waited for.
func (w *Ways) Waits() time.Duration {
	if w.Patience > 0 {
		return w.Patience
	}
	return Patience
}

// Of is how to ask the server of a model, named by its fingerprint.
func (w *Ways) Of(model string) Way {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[model].way
}

// Unasked says why a model is not asked now, "" where it is.
func (w *Ways) Unasked(model string) Outcome {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch k := w.by[model]; {
	case k.way == Nowise:
		return Unsupported
	case now.Before(k.until):
		return Slow
	}
	return ""
}

// Reads reports whether a table is for the votes of a model among so many samples.
func (w *Ways) Reads(t *verifier.Table, model string, samples int) bool {
	return t != nil && t.Reads(verifier.Votes{Of: samples, Sampled: w.Of(model) == Samples})
}

func (w *Ways) now() time.Time {
	if w.Now != nil {
		return w.Now()
	}
	return time.Now()
}

// tell notes what came of asking a way: a server that cannot be asked so is asked
// the next way from now on, and one that has not answered in time too often is left
// alone for a while.
func (w *Ways) tell(model string, way Way, err error, late bool) {
	refused, isRefusal := errors.AsType[*openai.Error](err)
	cannot := errors.Is(err, ErrNoProbs) || errors.Is(err, ErrNoSamples) || isRefusal && refused.Status == 400 && aboutAsking(refused.Param)
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	k, before := w.by[model], w.by[model]
	switch {
	case late && !now.Before(k.until): // else another question has paused it already
		if k.late++; k.late >= mostLate {
			k.until = now.Add(min(mostPause, leastPause<<min(k.late-mostLate, 10)))
		}
	case late:
	case cannot && way < Nowise:
		k = known{way: max(k.way, way+1)}
	default:
		k.late = 0
	}
	if k == before {
		return
	}
	if len(w.by) >= mostKnown || w.by == nil {
		w.by = map[string]known{}
	}
	w.by[model] = k
}

// aboutAsking reports whether a member is one of those by which the ways differ.
func aboutAsking(param string) bool {
	return param == "logprobs" || param == "top_logprobs" || param == "n"
}
