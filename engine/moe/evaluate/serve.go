// Package evaluate measures the moe runner the way a worker uses it: answers
// under batching, a change of topic under live balancing, accuracy against
// imbalance under LASER-style routing, and speed beside llama.cpp. It holds the
// commands and the suite of "weir bench" that print these figures; tests of
// the runner share its ways of serving.
package evaluate

import (
	"fmt"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/models"
)

// longest is the most tokens of a sequence; the bundled models' answers end
// long before.
const longest = 400

// Server keeps all sequences of a runner busy, as the worker's loop does: one
// batch per step, in which some sequences prefill and others decode greedily.
type Server struct {
	// Done is told each prompt's number and answer.
	Done func(i int, answer string)
	// Tokens counts what went through the model.
	Tokens int

	r     engine.Runner
	jobs  []*job
	spans []engine.Span
}

type job struct {
	index, held int
	next        []engine.Token
	text        []byte
}

// NewServer returns a Server without work.
func NewServer(r engine.Runner, done func(int, string)) *Server {
	return &Server{Done: done, r: r, jobs: make([]*job, r.Info().MaxSeqs)}
}

// Step runs one batch. next gives the prompts for idle sequences with their
// numbers, nil for none. Busy is false when nothing was left to do.
func (s *Server) Step(next func() (int, []engine.Token)) (busy bool, err error) {
	s.spans = s.spans[:0]
	for i := range s.jobs {
		if s.jobs[i] == nil {
			if n, prompt := next(); prompt != nil {
				s.jobs[i] = &job{index: n, next: prompt}
			}
		}
		if j := s.jobs[i]; j != nil {
			s.spans = append(s.spans, engine.Span{Seq: engine.Seq(i), Pos: j.held, Tokens: j.next, Logits: true})
			s.Tokens += len(j.next)
		}
	}
	if len(s.spans) == 0 {
		return false, nil
	}
	rows, err := s.r.Step(s.spans)
	if err != nil {
		return true, fmt.Errorf("step: %w", err)
	}
	for i, span := range s.spans {
		if err := s.take(span, argmax(rows[i])); err != nil {
			return true, err
		}
	}
	return true, nil
}

// take appends a token to a sequence or ends it.
func (s *Server) take(span engine.Span, t engine.Token) error {
	j := s.jobs[span.Seq]
	j.held += len(j.next)
	if !s.r.IsEnd(t) && j.held < longest {
		j.text, j.next = s.r.Piece(j.text, t), []engine.Token{t}
		return nil
	}
	s.jobs[span.Seq] = nil
	s.Done(j.index, string(j.text))
	return s.r.Forget(span.Seq, 0)
}

func argmax(row []float32) engine.Token {
	best := 0
	for i, x := range row {
		if x > row[best] {
			best = i
		}
	}
	return engine.Token(best)
}

// Serve answers all prompts; between, if there is one, is called before each
// step.
func Serve(r engine.Runner, prompts [][]engine.Token, between func(step int)) ([]string, error) {
	out := make([]string, len(prompts))
	s := NewServer(r, func(i int, answer string) { out[i] = answer })
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
		if busy, err := s.Step(next); err != nil || !busy {
			return out, err
		}
	}
}

// Lay lays out examples as prompts of a model.
func Lay(r engine.Templater, examples []models.Example) ([][]engine.Token, error) {
	out := make([][]engine.Token, len(examples))
	for i, e := range examples {
		var err error
		if out[i], err = r.ChatTokens([]engine.Message{{Role: "user", Content: e.Prompt}}, false); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Every returns every n-th example, of one task only unless it is empty.
func Every(examples []models.Example, n int, task string) (out []models.Example) {
	i := 0
	for _, e := range examples {
		if task != "" && e.Task != task {
			continue
		}
		if i++; i%n == 0 {
			out = append(out, e)
		}
	}
	return out
}

// Calibration lays out every n-th calibration prompt, of one task unless it is
// empty.
func Calibration(r engine.Templater, n int, task string) ([][]engine.Token, error) {
	examples, err := models.Calibration()
	if err != nil {
		return nil, err
	}
	return Lay(r, Every(examples, n, task))
}
