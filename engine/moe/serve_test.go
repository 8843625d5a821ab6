package moe_test

import (
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
)

// server keeps all sequences of a runner busy, as the worker's loop does: one
// batch per step, in which some sequences prefill and others decode.
type server struct {
	r     engine.Runner
	jobs  []*job
	spans []engine.Span
	// done is told each prompt's number and answer.
	done   func(i int, answer string)
	tokens int
}

type job struct {
	index, held int
	next        []engine.Token
	text        []byte
}

func newServer(r engine.Runner, done func(int, string)) *server {
	return &server{r: r, jobs: make([]*job, r.Info().MaxSeqs), done: done}
}

// step runs one batch. next gives the prompts for idle sequences, nil for none.
// It returns false when nothing is left to do.
func (s *server) step(t testing.TB, next func() (int, []engine.Token)) bool {
	t.Helper()
	s.spans = s.spans[:0]
	for i := range s.jobs {
		if s.jobs[i] == nil {
			if n, prompt := next(); prompt != nil {
				s.jobs[i] = &job{index: n, next: prompt}
			}
		}
		if j := s.jobs[i]; j != nil {
			s.spans = append(s.spans, engine.Span{Seq: engine.Seq(i), Pos: j.held, Tokens: j.next, Logits: true})
			s.tokens += len(j.next)
		}
	}
	if len(s.spans) == 0 {
		return false
	}
	rows, err := s.r.Step(s.spans)
	if err != nil {
		t.Fatalf("step: %v", err)
	}
	for i, span := range s.spans {
		s.take(t, span, enginetest.Argmax(rows[i]))
	}
	return true
}

// take appends a token to a sequence or ends it.
func (s *server) take(t testing.TB, span engine.Span, tok engine.Token) {
	j := s.jobs[span.Seq]
	j.held += len(j.next)
	if !s.r.IsEnd(tok) && j.held < 400 {
		j.text, j.next = s.r.Piece(j.text, tok), []engine.Token{tok}
		return
	}
	s.jobs[span.Seq] = nil
	s.done(j.index, string(j.text))
	if err := s.r.Forget(span.Seq, 0); err != nil {
		t.Fatal(err)
	}
}

// serve answers all prompts; between is called before each step.
func serve(t testing.TB, r engine.Runner, prompts [][]engine.Token, between func(step int)) []string {
	t.Helper()
	out := make([]string, len(prompts))
	s := newServer(r, func(i int, answer string) { out[i] = answer })
	at := 0
	next := func() (int, []engine.Token) {
		if at == len(prompts) {
			return 0, nil
		}
		at++
		return at - 1, prompts[at-1]
	}
	for i := 0; ; i++ {
		if between != nil {
			between(i)
		}
		if !s.step(t, next) {
			return out
		}
	}
}
