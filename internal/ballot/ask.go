package ballot

import (
	"context"
	"errors"
	"time"

	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/internal/openai"
)

// Patience bounds how long votes are waited for, where Ways names no other bound.
const Patience = 2 * time.Second

// Code is the error code in the ledger's rows of such requests: it tells what they
// were for.
const Code = "verify"

// Outcome says what became of the votes on an answer. The set is closed: it stands
// in metrics and explanations.
type Outcome string

// Outcomes of a model that was asked.
const (
	Same      Outcome = "same"      // its votes left the verdict
	Escalates Outcome = "escalates" // they turned a kept answer into an escalation
	Keeps     Outcome = "keeps"     // and the other way round
	Learned   Outcome = "learned"   // they were wanted for a label alone
	Timeout   Outcome = "timeout"
	Failed    Outcome = "error"
	Unread    Outcome = "unread" // it said neither yes nor no
)

// Outcomes of one that was not.
const (
	NotViable   Outcome = "not_viable" // the table of votes is not usable
	Certain     Outcome = "certain"    // no votes could turn the verdict
	Broken      Outcome = "validator_failed"
	NoSignal    Outcome = "signal_unusable"
	Shown       Outcome = "shown"   // the client has text of the answer
	Decided     Outcome = "decided" // a doubt before the answer's end counts
	Hedged      Outcome = "hedged"
	NoText      Outcome = "no_text" // a tool call, nothing or too much was said
	Blocked     Outcome = "blocked" // nobody else may answer, whatever the votes
	Late        Outcome = "deadline"
	Capped      Outcome = "cap" // the request has made its attempts
	Busy        Outcome = "busy"
	Slow        Outcome = "slow"        // its votes have lately not come in time
	Unsupported Outcome = "unsupported" // the model server can tell no votes
)

// Heard is what asking brought. Votes are nil where Outcome tells why there are
// none.
type Heard struct {
	Votes   *verifier.Votes
	Outcome Outcome
	Sent    bool // a request went out
	Ran     bool // and its answer came
	Used    openai.Usage
}

// Ask asks once about an answer of a model, named by its fingerprint. send sends a
// body to its server and returns the answer.
func (w *Ways) Ask(ctx context.Context, model string, c *Case, send func(context.Context, openai.Body) ([]byte, error)) (h Heard) {
	if why := w.Unasked(model); why != "" {
		return Heard{Outcome: why}
	}
	way := w.Of(model)
	short, stop := context.WithTimeout(ctx, w.Waits())
	defer stop()
	h.Sent = true
	data, err := send(short, c.Ask(way))
	if h.Ran = err == nil; h.Ran {
		var v verifier.Votes
		if v, h.Used, err = c.Count(way, data); err == nil {
			h.Votes = &v
		}
	}
	late := !h.Ran && short.Err() != nil
	switch {
	case late && ctx.Err() != nil: // whoever asks has left: that says nothing of the server
		h.Outcome = Failed
		return h
	case late:
		h.Outcome = Timeout
	}
	w.tell(model, way, err, late)
	switch {
	case err == nil, late:
	case errors.Is(err, ErrUnread):
		h.Outcome = Unread
	case w.Of(model) != way:
		h.Outcome = Unsupported
	default:
		h.Outcome = Failed
	}
	return h
}
