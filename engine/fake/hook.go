package fake

import (
	"context"
	"net/http"
)

// Stage is a moment in a completion request's life.
type Stage int

// Stages, in order.
const (
	Arrived Stage = iota // nothing was read of the body
	Headers              // the answer's status and headers are about to leave
	Token                // token number Call.Token is about to leave (streams) or be made
	End                  // all tokens have left, the rest of the answer has not
)

// Leg tells what a request's kv_transfer_params ask for.
type Leg string

// Values of Leg.
const (
	Whole   Leg = "whole"
	Prefill Leg = "prefill"
	Decode  Leg = "decode"
)

// Call is what a Hook may know of a request. Leg and Stream are not known at
// Arrived.
type Call struct {
	Number int // 1 for the engine's first completion request
	Path   string
	Stream bool
	Leg    Leg
	Token  int // at stage Token, from 0
}

// Hook is called at each stage. It may wait (until ctx ends), write what it
// likes to w, or panic with http.ErrAbortHandler to cut the connection. stop
// ends the request there: the engine writes nothing more.
type Hook func(ctx context.Context, stage Stage, c Call, w http.ResponseWriter) (stop bool)
