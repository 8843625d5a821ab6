// Package profile measures how long a runner's steps take over batch and
// context, for a cost model.
package profile

import (
	"context"
	"fmt"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/cost"
)

// repeats is how often each step is measured.
const repeats = 3

// profiler walks a runner through steps and keeps their times.
type profiler struct {
	ctx     context.Context
	r       engine.Runner
	info    engine.Info
	until   time.Time
	held    []int // tokens of each sequence
	samples []cost.Sample
	tokens  []engine.Token
	spans   []engine.Span
}

// Measure runs steps on the empty sequences of r for about most, and leaves them
// empty. It sees short contexts first, so that a short time gives a model of
// those.
func Measure(ctx context.Context, r engine.Runner, most time.Duration) ([]cost.Sample, error) {
	p := &profiler{ctx: ctx, r: r, info: r.Info(), until: time.Now().Add(most), held: make([]int, r.Info().MaxSeqs)}
	p.tokens = make([]engine.Token, p.info.MaxBatch)
	for i := range p.tokens {
		p.tokens[i] = engine.Token(3 + i%(p.info.Vocab-3))
	}
	err := p.walk()
	for s := range p.held {
		if e := r.Forget(engine.Seq(s), 0); err == nil {
			err = e
		}
	}
	return p.samples, err
}

// done says that the time is over, but not before there is something.
func (p *profiler) done() bool { return p.ctx.Err() != nil || time.Now().After(p.until) }

// walk measures at growing contexts: prompts on the way there, then decodes of
// each batch size, alone and beside a piece of a prompt.
func (p *profiler) walk() error {
	if err := p.decode(0, 1, 1); err != nil { // warms up, and does not count
		return err
	}
	p.samples = nil
	for ctx := 16; ctx < p.info.Context-repeats; ctx *= 2 {
		seqs := p.fitting(ctx)
		if seqs == 0 || p.done() {
			break
		}
		if err := p.at(ctx, seqs); err != nil {
			return err
		}
	}
	return p.ctx.Err()
}

// fitting is how many sequences of a length fit, with room for one prompt.
func (p *profiler) fitting(ctx int) int {
	return min(p.info.MaxSeqs-1, (p.info.KVTokens-min(p.info.Context, 2*ctx))/(ctx+repeats), p.info.MaxBatch/2)
}

func (p *profiler) at(ctx, seqs int) error {
	for s := range p.held {
		if s >= seqs {
			if err := p.cut(s, 0); err != nil {
				return err
			}
			continue
		}
		if err := p.fill(s, ctx); err != nil {
			return err
		}
	}
	for n := 1; n <= seqs && !p.done(); n *= 2 {
		for _, chunk := range []int{0, 16, 64, 256} {
			if err := p.decode(n, ctx, min(chunk, p.info.MaxBatch-n, p.info.Context)); err != nil {
				return err
			}
		}
	}
	return nil
}

// fill brings a sequence to n tokens, in prompt steps that are measured.
func (p *profiler) fill(s, n int) error {
	for p.held[s] < n {
		part := min(n-p.held[s], len(p.tokens))
		p.spans = append(p.spans[:0], engine.Span{Seq: engine.Seq(s), Pos: p.held[s], Tokens: p.tokens[:part], Logits: true})
		if err := p.step(); err != nil {
			return err
		}
	}
	return nil
}

// decode measures steps of n sequences that hold ctx tokens, with chunk tokens
// of a prompt in another one, and takes them back.
func (p *profiler) decode(n, ctx, chunk int) error {
	prompt := len(p.held) - 1
	for range repeats {
		p.spans = p.spans[:0]
		for s := range n {
			p.spans = append(p.spans, engine.Span{Seq: engine.Seq(s), Pos: p.held[s], Tokens: p.tokens[:1], Logits: true})
		}
		if chunk > 0 {
			p.spans = append(p.spans, engine.Span{Seq: engine.Seq(prompt), Tokens: p.tokens[:chunk], Logits: true})
		}
		if err := p.step(); err != nil {
			return err
		}
		if err := p.cut(prompt, 0); err != nil {
			return err
		}
	}
	for s := range n {
		if err := p.cut(s, ctx); err != nil {
			return err
		}
	}
	return nil
}

// step runs and measures p.spans.
func (p *profiler) step() error {
	var what cost.Step
	for _, s := range p.spans {
		n := len(s.Tokens)
		if n == 1 && s.Pos > 0 {
			what.Decodes++
			what.Context += s.Pos
		} else {
			what.Prefill += n
			what.Pairs += n*s.Pos + n*(n-1)/2
		}
	}
	began := time.Now()
	if _, err := p.r.Step(p.spans); err != nil {
		return fmt.Errorf("step of %+v: %w", what, err)
	}
	p.samples = append(p.samples, cost.Sample{Step: what, MS: time.Since(began).Seconds() * 1000})
	for _, s := range p.spans {
		p.held[s.Seq] = s.Pos + len(s.Tokens)
	}
	return nil
}

func (p *profiler) cut(s, n int) error {
	p.held[s] = min(p.held[s], n)
	return p.r.Forget(engine.Seq(s), n)
}
