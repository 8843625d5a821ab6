// Package batch decides which tokens of which requests go into a runner's next
// step. It is pure: functions from a state to a step, no clock, no I/O, so that
// the simulator runs the code that the worker runs.
//
// Policy: continuous batching (Orca, OSDI'22: requests join and leave between
// steps) with chunked prefill (Sarathi-Serve, OSDI'24: decodes first, then
// prompts within a budget of tokens, which Chunk sizes by the decodes' slack), in
// the order of Compare: priority, then the time by which the first token is wanted. A request is admitted when its
// prompt and some headroom fit into the KV cache; when outputs outgrow it, the
// last in order gives its sequence up and is computed anew later (vLLM).
//
//	reads       pending and held tokens and the bound of each sequence, and its
//	            rank; never old, the caller owns them
//	turns       who is admitted, who is given up; how many tokens each gets
//	parameters  Limits, and the aging of Compare
//	never       over KVTokens, MaxSeqs or MaxBatch; a later request admitted
//	            before an earlier one; the first in order given up
//	fails at    outputs that all grow to their bound at once: then sequences are
//	            computed twice. Headroom 0 reserves every bound and never does.
package batch

import "fmt"

// Running is an admitted sequence.
type Running struct {
	// Pending counts tokens that are known but not in the KV cache: the rest of
	// the prompt, or one while decoding.
	Pending int
	// Held counts tokens in the KV cache.
	Held int
	// Most is the most KV tokens that the sequence may come to hold.
	Most int
}

// Waiting is a request that has no sequence yet. Held is what it will hold at
// once when it is admitted: the tokens of a KV import.
type Waiting struct{ Pending, Held, Most int }

// State is what Compose sees. Both lists are in order of service: see Compare.
type State struct {
	Running []Running
	Waiting []Waiting
}

// Limits are the hard constraints of a runner and the knobs of the policy.
type Limits struct {
	MaxBatch int // most tokens in one step
	MaxSeqs  int // most sequences; at most MaxBatch, so that each can decode
	KVTokens int // most tokens in the KV cache
	// Chunk is the most prompt tokens in a step in which a sequence decodes: it
	// bounds how long a prompt delays others' next token. 0 leaves only MaxBatch.
	Chunk int
	// Headroom is how many tokens of output must fit beside what everybody holds
	// and has pending before one more is admitted. 0 reserves whole outputs.
	Headroom int
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
	case l.Headroom < 0:
		return fmt.Errorf("headroom is %d: it must not be negative", l.Headroom)
	}
	return nil
}

// Fits reports whether w could ever be admitted. The caller refuses others.
func (l Limits) Fits(w Waiting) bool { return w.Most <= l.KVTokens }

// claim is how many KV tokens a sequence counts for when another asks for room.
func (l Limits) claim(held, pending, most int) int {
	if l.Headroom == 0 {
		return most
	}
	return min(most, held+pending+l.Headroom)
}

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
	NoKV        Reason = "kv"        // it does not fit
	NoBudget    Reason = "budget"    // the step's tokens are spent
)

// Step is what to run next.
type Step struct {
	// GiveUp is how many sequences at the end of State.Running lose their KV
	// before the step. Then nobody is admitted.
	GiveUp int
	// Admit is how many of State.Waiting get a sequence, from the front.
	Admit   int
	Spans   []Span
	Blocked Reason
}

// room is what is left of a step while it is composed.
type room struct {
	batch   int // tokens of the step
	prompts int // of them, for prompts
	kv      int // tokens of the KV cache
}

// Compose gives the next step: one token for each decoding sequence, then
// prompts already begun, then new ones, in order, within the limits. buf is
// reused for Step.Spans. It runs in time linear in running plus admitted, and
// again for each sequence that is given up.
func Compose(s State, l Limits, buf []Span) Step {
	step := Step{Spans: buf[:0]}
	r := l.keep(s.Running, &step)
	if r.prompts = r.batch; l.Chunk > 0 && len(step.Spans) > 0 {
		r.prompts = min(r.batch, l.Chunk)
	}
	running := s.Running[:len(s.Running)-step.GiveUp]
	for i, q := range running {
		if q.Pending > 1 {
			step.prompt(i, q.Pending, &r)
		}
	}
	if step.GiveUp > 0 {
		if step.Blocked = NoKV; len(s.Waiting) == 0 {
			step.Blocked = NoneWaiting
		}
		return step
	}
	step.admit(s, l, &r)
	return step
}

// keep lays out the decodes of as many sequences as can go on, at least one.
func (l Limits) keep(running []Running, step *Step) room {
	held, decodes := 0, 0
	for _, q := range running {
		held += q.Held
		if q.Pending == 1 {
			decodes++
		}
	}
	n := len(running)
	for ; n > 1 && !l.goesOn(running[0], held, decodes); n-- {
		held -= running[n-1].Held
		if running[n-1].Pending == 1 {
			decodes--
		}
	}
	step.GiveUp = len(running) - n
	for i, q := range running[:n] {
		if q.Pending == 1 {
			step.Spans = append(step.Spans, Span{Index: i, Tokens: 1, Logits: true})
		}
	}
	return room{batch: l.MaxBatch - decodes, kv: l.KVTokens - held - decodes}
}

// goesOn says that all decodes have room, and the first in order as well where
// it still has its prompt to compute.
func (l Limits) goesOn(first Running, held, decodes int) bool {
	if first.Pending > 1 {
		held++
	}
	return held+decodes <= l.KVTokens
}

// admit takes waiting requests in.
func (s *Step) admit(state State, l Limits, r *room) {
	claimed := 0
	for _, q := range state.Running {
		claimed += l.claim(q.Held, q.Pending, q.Most)
	}
	for i, w := range state.Waiting {
		claim := l.claim(w.Held, w.Pending, w.Most)
		switch {
		case len(state.Running)+i >= l.MaxSeqs:
			s.Blocked = NoSequence
		case claimed+claim > l.KVTokens:
			s.Blocked = NoKV
		case r.prompts == 0 && w.Pending > 0:
			s.Blocked = NoBudget
		}
		if s.Blocked != NoneWaiting {
			return
		}
		claimed += claim
		s.Admit++
		r.kv -= w.Held
		s.prompt(len(state.Running)+i, w.Pending, r)
	}
}

// prompt gives a sequence as many of its pending tokens as there is room for.
func (s *Step) prompt(index, pending int, r *room) {
	n := min(pending, r.prompts, r.kv)
	if n <= 0 {
		return
	}
	s.Spans = append(s.Spans, Span{Index: index, Tokens: n, Logits: n == pending})
	r.prompts -= n
	r.kv -= n
}
