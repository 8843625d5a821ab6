package local

import (
	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/jsonscan"
)

// flush shows or forgets what is held. A whole answer is sent at its end; of it
// only log-probabilities are held.
func (f *flight) flush(out stream.Output) error {
	if out.Flush && f.out.stream {
		for i := range f.held {
			if err := f.emit(&f.held[i]); err != nil {
				return err
			}
		}
	}
	if out.Drop || out.Flush && f.out.stream {
		f.held, f.arena = nil, nil
	}
	return nil
}

// pass sends a piece or holds it back.
func (f *flight) pass(p *upstream.Piece) error {
	shows := f.m.Text()
	switch {
	case shows && f.out.stream:
		return f.emit(p)
	case f.out.stream || f.c.req.Logprobs:
		f.held = append(f.held, upstream.Piece{Text: f.copy(p.Text), Calls: f.copy(p.Calls), Logprobs: f.copy(p.Logprobs)})
	}
	return nil
}

func (f *flight) copy(b []byte) []byte {
	if b == nil {
		return nil
	}
	at := len(f.arena)
	f.arena = append(f.arena, b...)
	return f.arena[at:len(f.arena):len(f.arena)]
}

// emit sends a piece. Before the first one the result is completed as far as
// it is known.
func (f *flight) emit(p *upstream.Piece) error {
	f.seal()
	if f.keep {
		f.shown, _ = jsonscan.AppendText(f.shown, p.Text) // a tool call adds no text
	}
	return f.frames.piece(p)
}

// seal completes the result before the first piece. Of an answer that goes on
// the tier is known, and the reason where nothing is judged.
func (f *flight) seal() {
	if f.sealed {
		return
	}
	f.sealed = true
	c := f.c
	if f.end == nil {
		c.result.Tier, c.result.Model, c.result.Attempts = cascade.TierEdge, f.s.opt.Model, c.edgeRuns+c.cloudSends
		if !c.plan.Judge && !c.check.form {
			c.result.Reason = f.why
		}
	}
	f.s.seal(c, f.out, f.end == nil && f.s.edgePriced(c), nil)
}
