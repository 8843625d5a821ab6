package loop

import (
	"errors"
	"fmt"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/internal/prefix"
)

// Errors that a caller of Submit and Stream.Next decides on.
var (
	// ErrContext says that the prompt leaves no room for an answer.
	ErrContext = errors.New("prompt is longer than the model's context")
	// ErrResumed says that what is to be resumed holds a complete stop string:
	// nothing follows it.
	ErrResumed = errors.New("the answer has ended before")
	// ErrBusy says that too many requests wait already.
	ErrBusy = errors.New("too many requests are waiting")
	// ErrClosed says that the loop has ended or is ending.
	ErrClosed = errors.New("worker is shutting down")
	// ErrRunner says that the model failed on this request's step.
	ErrRunner = errors.New("model runner failed")
)

// Request is one generation.
type Request struct {
	Operation string         // names the request in state; may be empty
	Prompt    []engine.Token // BOS included where the model wants it
	Sample    sample.Params
	// Resumed are tokens that were generated elsewhere: the answer goes on after
	// them. Shown is how many bytes of their text the reader has.
	Resumed []engine.Token
	Shown   int
	// Salt and Keys are for the prefix cache: requests share KV within one salt,
	// and the keys stand for the prompt in state.
	Salt string
	Keys []prefix.Key
	// Priority is vLLM's: the lower the earlier. Within one, the earliest Due
	// comes first: when the first token is wanted, after arrival; DefaultDue
	// when 0.
	Priority int
	Due      time.Duration
	// TPOT is the time per output token that is wanted; DefaultTPOT when 0. It
	// bounds how much of others' prompts goes between two tokens.
	TPOT time.Duration
	// MaxTokens bounds the answer, the end token included. 0, or more than the
	// context has room for, means what the context has room for.
	MaxTokens int
	MinTokens int  // no end token before so many
	IgnoreEOS bool // an end token does not end the answer
	Stop      []string
	Logprobs  bool
	Top       int // alternatives per token with Logprobs
	// Export makes this a prefill leg: it ends after one token and the hand-off
	// is in Result.
	Export bool
	// Import, when set, is the prompt's state from a prefill leg.
	Import *Handoff
	// DecodeLeg says that another worker was meant to compute the prompt. It
	// only decides where prompt tokens are counted.
	DecodeLeg bool
}

// DefaultDue is Request.Due where nobody says.
const DefaultDue = 10 * time.Second

// Handoff is a request's state, ready to decode from.
type Handoff struct {
	Tokens []engine.Token // the prompt, and what was generated after it
	Logits []float32      // the row after its last token, from which the first token is sampled; nil while it goes on here
	KV     [][]byte       // parts of Runner.ExportKV, from position From on
	From   int
	// Stopped is when the generation stood still to move; zero for a prompt.
	Stopped time.Time
	// Done, when set, is called once the loop does not need the bytes any more.
	Done func()
}

func (h *Handoff) done() {
	if h.Done != nil {
		h.Done()
	}
}

// Finish tells why a generation ended.
type Finish string

// Values of Finish. A stream without one goes on.
const (
	FinishStop   Finish = "stop"   // end token or stop string
	FinishLength Finish = "length" // MaxTokens or the context
	FinishAbort  Finish = "abort"  // cancelled
	FinishError  Finish = "error"  // Stream.Next returns the error
	// FinishMigrated: Stream.Migrate was asked; the answer goes on elsewhere.
	FinishMigrated Finish = "migrated"
)

// Batch is what a stream brought since the last Next.
type Batch struct {
	// Text may be shown: it ends before a stop string and cuts no UTF-8 sequence
	// except at the end of the generation.
	Text []byte
	// Tokens are those generated, the end token included. Text may lag behind
	// them.
	Tokens []sample.Logprob // Logprob is 0 unless the request asked
	// Top holds Request.Top alternatives (at most the vocabulary) per token.
	Top    []sample.Logprob
	Finish Finish
}

func (b *Batch) reset() { b.Text, b.Tokens, b.Top, b.Finish = b.Text[:0], b.Tokens[:0], b.Top[:0], "" }

// check fills in the bounds of a request.
func (r *Request) check(info engine.Info) error {
	held := len(r.Prompt) + len(r.Resumed)
	room := min(info.Context, info.KVTokens) - held
	switch {
	case len(r.Prompt) == 0:
		return fmt.Errorf("%w: the prompt is empty", ErrRunner)
	case room < 1:
		return fmt.Errorf("%w: %d tokens of %d", ErrContext, held, min(info.Context, info.KVTokens))
	}
	if r.MaxTokens <= 0 || r.MaxTokens > room {
		r.MaxTokens = room
	}
	if r.Export {
		r.MaxTokens = 1
	}
	if r.Due <= 0 {
		r.Due = DefaultDue
	}
	r.Top = min(r.Top, info.Vocab)
	return nil
}
