package ballot

import (
	"errors"
	"sync"

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

// Ways remembers by model how its server can be asked. The zero value is ready
// and safe for concurrent use.
type Ways struct {
	mu sync.Mutex
	by map[string]Way
}

// Of is how to ask the server of a model, named by its fingerprint.
func (w *Ways) Of(model string) Way {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[model]
}

// tell notes what came of asking a way: a server that cannot be asked so is asked
// the next way from now on.
func (w *Ways) tell(model string, way Way, err error) {
	refused, isRefusal := errors.AsType[*openai.Error](err)
	cannot := errors.Is(err, ErrNoProbs) || errors.Is(err, ErrNoSamples) || isRefusal && refused.Status == 400 && aboutAsking(refused.Param)
	if !cannot || way >= Nowise {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.by) >= mostKnown || w.by == nil {
		w.by = map[string]Way{}
	}
	w.by[model] = max(w.by[model], way+1)
}

// aboutAsking reports whether a member is one of those by which the ways differ.
func aboutAsking(param string) bool {
	return param == "logprobs" || param == "top_logprobs" || param == "n"
}
