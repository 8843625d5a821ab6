// Package batch decides which tokens of which requests go into a runner's next
// step. It is pure: one function from a state to a step, no clock, no I/O, so
// that the simulator runs the code that the worker runs.
//
// Policy: first come, first served, continuous batching (Orca, OSDI'22:
// requests join and leave between steps).
//
//	reads       pending tokens and reservation of each sequence; never old, the
//	            caller owns them
//	turns       who is admitted; how many tokens each sequence gets
//	parameters  Limits
//	never       over KVTokens, MaxSeqs or MaxBatch; a later request before an
//	            earlier one
//	fails at    unbounded outputs: each request reserves prompt plus bounded
//	            output, so long bounds that are not used leave KV idle
package batch

import "fmt"

// Running is an admitted sequence.
type Running struct {
	// Pending counts tokens that are known but not in the KV cache: the rest of
	// the prompt, or one while decoding.
	Pending int
	// Reserve is the most KV tokens that the sequence may come to hold.
	Reserve int
}

// Waiting is a request that has no sequence yet. Pending is 0 when its KV will
// be imported.
type Waiting struct{ Pending, Reserve int }

// State is what Compose sees. Running is in order of admission; Waiting is in
// order of service, which the caller decides (arrival, or priority first).
type State struct {
	Running []Running
	Waiting []Waiting
}

// Limits are the hard constraints of a runner.
type Limits struct {
	MaxBatch int // most tokens in one step
	MaxSeqs  int // most sequences; at most MaxBatch, so that each can decode
	KVTokens int // most tokens in the KV cache
	// Chunk is the most prompt tokens of one request in one step; 0 leaves only
	// MaxBatch. A prompt longer than that is spread over several steps.
	Chunk int
}

// Validate reports limits under which a request could wait for ever.
func (l Limits) Validate() error {
	switch {
	case l.MaxSeqs < 1:
		return fmt.Errorf("max_seqs is %d: at least 1 is needed", l.MaxSeqs)
	case l.MaxBatch < l.MaxSeqs:
		return fmt.Errorf("max_batch is %d: at least max_seqs (%d) is needed", l.MaxBatch, l.MaxSeqs)
	case l.KVTokens < 1:
		return fmt.Errorf("kv_tokens is %d: at least 1 is needed", l.KVTokens)
	case l.Chunk < 0:
		return fmt.Errorf("chunk is %d: it must not be negative", l.Chunk)
	}
	return nil
}

// Fits reports whether w could ever be admitted. The caller refuses others.
func (l Limits) Fits(w Waiting) bool { return w.Reserve <= l.KVTokens }

// Span is one sequence's share of a step.
type Span struct {
	// Index counts State.Running and then the admitted of State.Waiting.
	Index  int
	Tokens int
	// Logits says that the span reaches the end of what is pending, so that the
	// next token can be sampled.
	Logits bool
}

// Reason tells why the first of the requests still waiting was not admitted.
type Reason string

// Values of Reason.
const (
	NoneWaiting Reason = ""
	NoSequence  Reason = "sequences" // MaxSeqs are running
	NoKV        Reason = "kv"        // its reservation does not fit
	NoBudget    Reason = "budget"    // the step's tokens are spent
)

// Step is what to run next.
type Step struct {
	// Admit is how many of State.Waiting get a sequence, from the front.
	Admit   int
	Spans   []Span
	Blocked Reason
}

// Compose gives the next step: one token for each decoding sequence, then
// prompts already begun, then new ones, in order, within the limits. buf is
// reused for Step.Spans. It runs in time linear in running plus admitted.
func Compose(s State, l Limits, buf []Span) Step {
	step := Step{Spans: buf[:0]}
	left := l.MaxBatch
	reserved := 0
	for i, r := range s.Running {
		reserved += r.Reserve
		if r.Pending == 1 && left > 0 {
			step.Spans = append(step.Spans, Span{Index: i, Tokens: 1, Logits: true})
			left--
		}
	}
	for i, r := range s.Running {
		if r.Pending > 1 && left > 0 {
			left -= step.prefill(i, r.Pending, left, l.Chunk)
		}
	}
	for i, w := range s.Waiting {
		if step.Blocked = blocked(w, len(s.Running)+i, reserved, left, l); step.Blocked != NoneWaiting {
			break
		}
		reserved += w.Reserve
		step.Admit++
		left -= step.prefill(len(s.Running)+i, w.Pending, left, l.Chunk)
	}
	return step
}

func blocked(w Waiting, running, reserved, left int, l Limits) Reason {
	switch {
	case running >= l.MaxSeqs:
		return NoSequence
	case reserved+w.Reserve > l.KVTokens:
		return NoKV
	case left == 0 && w.Pending > 0:
		return NoBudget
	}
	return NoneWaiting
}

func (s *Step) prefill(index, pending, left, chunk int) int {
	n := min(pending, left)
	if chunk > 0 {
		n = min(n, chunk)
	}
	if n > 0 {
		s.Spans = append(s.Spans, Span{Index: index, Tokens: n, Logits: n == pending})
	}
	return n
}

// Victim is the index of the sequence to give up when the runner finds no room
// in spite of the reservations: the newest, which has cost the least and whose
// loss keeps the order of service. -1 when fewer than two are running: a single
// sequence has nobody to make room for it.
func Victim(running []Running) int {
	if len(running) < 2 {
		return -1
	}
	return len(running) - 1
}
