package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/weirhq/weir/cloud/gateway/chunk"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/jsonscan"
	"github.com/weirhq/weir/internal/openai"
)

// A stream that breaks off is continued by another instance, which computes
// prompt and shown text again and goes on after them, when the rule of
// resumable allows it. The client sees one stream.

// maxShown bounds the text that is kept to continue a stream, in bytes.
const maxShown = 256 << 10

// seams are members that make an answer depend on more than its tokens from
// left to right, or that count from its beginning.
var seams = []string{"best_of", "echo", "suffix", "prompt_logprobs", "functions", "guided_json", "guided_regex", "guided_choice",
	"guided_grammar", "structured_outputs"}

// resumable reports whether a stream of this request may be continued: one
// answer of free text, without log-probabilities (their offsets and the choice
// among several would not join). Tool calls and reasoning are excluded when they
// appear: see shown.
func (a *ask) resumable() bool {
	if !a.req.Stream || a.req.N > 1 || a.req.Logprobs {
		return false
	}
	if raw, ok := a.body["response_format"]; ok && !freeForm(raw) {
		return false
	}
	return !slices.ContainsFunc(seams, func(name string) bool { _, ok := a.body[name]; return ok })
}

func freeForm(raw json.RawMessage) bool {
	var f struct {
		Type string `json:"type"`
	}
	return jsonscan.IsNull(raw) || json.Unmarshal(raw, &f) == nil && f.Type == "text"
}

// shown is what the client has seen of a streamed answer, in the form in which
// it is sent to who continues it.
type shown struct {
	generated int       // tokens over all attempts, as far as the ids tell
	last      time.Time // when the newest came
	identity
	text []byte // inside of a JSON string
	ids  []byte // inside of a JSON list
	// weights are those that the tokens come from, the first ones that are known.
	weights string
	gaps    bool // a token came without its id
	fixed   bool // something came that nobody can continue
}

// identity is what all events of an answer have in common, as JSON; nil while no
// event has told it.
type identity struct{ id, created []byte }

// learn takes what an event tells for the first time.
func (i *identity) learn(c *chunk.Event) {
	if i.id == nil {
		i.id = bytes.Clone(c.ID)
	}
	if i.created == nil {
		i.created = bytes.Clone(c.Created)
	}
}

// tokens is how many of them an event with text has: one, where no ids tell.
func tokens(c *chunk.Event) int { return max(count(c.IDs), 1) }

// spare is how many tokens more than it was asked for an engine's answer may seem
// to have: an event is counted as one, and some bring less than that.
const spare = 64

// most bounds what is taken of an answer, in tokens: an engine that does not keep
// max_tokens may never end. 0 has no bound: max_completion_tokens, the newer name,
// some engines do not read, and end well without it.
func (a *admitted) most() int {
	req := a.ask.req
	if _, named := a.ask.body["max_tokens"]; !named || req.MaxTokens == nil {
		return 0
	}
	return *req.MaxTokens*max(1, req.N) + spare
}

// endless is the failure of a leg that has given more than that.
func endless(leg *pool.Leg) *legError {
	return broken(route.StageDecode, leg, "the model server does not end at max_tokens")
}

// note takes an event with tokens, made with weights.
func (s *shown) note(c *chunk.Event, weights string) {
	s.weights = cmp.Or(s.weights, weights)
	s.generated += tokens(c)
	s.last = time.Now()
	if s.fixed = s.fixed || c.Other || len(s.text)+len(c.Text) > maxShown; s.fixed {
		return
	}
	s.text = append(s.text, c.Text[1:len(c.Text)-1]...)
	if s.gaps = s.gaps || count(c.IDs) == 0; s.gaps {
		return
	}
	if len(s.ids) > 0 {
		s.ids = append(s.ids, ',')
	}
	s.ids = append(s.ids, c.IDs[1:len(c.IDs)-1]...)
}

// count is the length of a JSON list.
func count(list []byte) int {
	n := 0
	for l := jsonscan.Elements(list); l.Next(); {
		n++
	}
	return n
}

// took notes the word of a worker that gave the answer away: it may have
// generated tokens with weights whose text nobody has seen yet.
func (s *shown) took(resume []byte, weights string) {
	s.weights = cmp.Or(s.weights, weights)
	for o := jsonscan.Members(resume); o.Next(); {
		if o.Is("tokens") {
			n := count(o.Val)
			s.gaps = s.gaps || n != s.generated
			s.generated = n
		}
	}
}

// body is the member weir_resume.
func (s *shown) body() json.RawMessage {
	out := append([]byte(`{"text":"`), s.text...)
	out = append(out, '"')
	if !s.gaps && len(s.ids) > 0 {
		out = append(append(append(out, `,"tokens":[`...), s.ids...), ']')
	}
	return append(out, '}')
}

// continuable reports whether another instance may go on with the stream.
func (a *admitted) continuable() bool {
	s := &a.stream.shown
	left := a.ask.req.MaxTokens == nil || *a.ask.req.MaxTokens > s.generated
	return a.ask.resumable() && !s.fixed && left
}

// asResumed makes a leg's body continue what was shown, if anything was.
func (a *admitted) asResumed(b openai.Body) {
	switch {
	case a.tries.moved != nil:
		b["weir_resume"] = a.tries.moved.Resume
	case a.stream.resumes():
		b["weir_resume"] = a.stream.shown.body()
	default:
		return
	}
	done := a.stream.shown.generated
	for _, name := range []string{"max_tokens", "max_completion_tokens"} {
		if _, ok := b[name]; ok && a.ask.req.MaxTokens != nil {
			b.Set(name, *a.ask.req.MaxTokens-done)
		}
	}
	if a.ask.req.MinTokens > 0 {
		b.Set("min_tokens", max(a.ask.req.MinTokens-done, 0))
	}
}

// wholeUsage is the usage that the client is told: of all attempts.
func (a *attempt) wholeUsage(leg *openai.Usage) []byte {
	u := *leg
	u.CompletionTokens += int(a.tries.carried.OutputTokens) + a.tries.handed
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return mustJSON(&u)
}
