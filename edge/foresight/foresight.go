// Package foresight guesses from the prompt alone how the edge's answer will be
// judged. It learns from the node's own verdicts: from hashed words
// (cascade/prerouter) and, where the operator names an embedding endpoint, from the
// most similar prompts seen. What it has learned outlives a restart. Neither
// prompts nor answers are kept, only hashes and vectors.
package foresight

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade/prerouter"
)

// Bounds of what is learned.
const (
	after    = 200 // verdicts before a guess counts
	mostCell = 16  // classes; others have none
	// support is how many labels of similar prompts a guess rests on at least.
	support = 3
)

// Options configure a Foresight.
type Options struct {
	Dir      string    // of the snapshot; "" keeps nothing
	Embedder *Embedder // nil: words alone
	Log      *slog.Logger
}

// Foresight is safe for concurrent use.
type Foresight struct {
	opt Options

	mu      sync.Mutex
	model   string // fingerprint of the edge model that was judged
	cells   map[string]*guesser
	changes uint64

	near    sync.RWMutex // guards similar, which is read for milliseconds
	similar *prerouter.Similar
}

// guesser is what is known of one class.
type guesser struct {
	router  *prerouter.Router
	seen    int
	scratch []prerouter.Feature
}

// Look is one request's prompt as foresight sees it. One goroutine owns it.
type Look struct {
	f       *Foresight
	cell    string
	model   string
	prompt  prerouter.Prompt
	pending chan struct{} // closed when what follows is set; nil without an embedder
	ctx     context.Context
	stop    context.CancelFunc

	vector  []float64
	near    prerouter.Prediction
	weight  prerouter.Prediction
	outcome Outcome
}

// Embeds reports whether prompts are embedded.
func (f *Foresight) Embeds() bool { return f.opt.Embedder != nil }

// Look begins to look at a request of the class cell that a model with this
// fingerprint would answer. End must follow. The prompt is embedded meanwhile.
func (f *Foresight) Look(cell, model string, p prerouter.Prompt) *Look {
	l := &Look{f: f, cell: cell, model: model, prompt: p, stop: func() {}}
	if f.opt.Embedder == nil {
		return l
	}
	l.pending = make(chan struct{})
	l.ctx, l.stop = context.WithTimeout(context.Background(), f.opt.Embedder.opt.Timeout)
	prior := f.words(cell, model, &p)
	go func() {
		defer close(l.pending)
		l.vector, l.outcome = f.opt.Embedder.embed(l.ctx, p.Text)
		if l.vector != nil && !l.compare(prior) {
			l.outcome = OutcomeTimeout
		}
	}()
	return l
}

// End gives up what is not known yet. l may be nil.
func (l *Look) End() {
	if l == nil {
		return
	}
	l.stop()
	if l.pending != nil {
		<-l.pending
	}
}

// compare looks for similar prompts. It reports false when time is up.
func (l *Look) compare(prior prerouter.Prediction) (ok bool) {
	l.f.near.RLock()
	defer l.f.near.RUnlock()
	if s := l.f.similar; s != nil {
		l.near, l.weight, ok = s.P(l.vector, prior, func() bool { return l.ctx.Err() != nil })
		return ok
	}
	return true
}

// embedded waits for the vector until its time is up, and reports whether there
// is one.
func (l *Look) embedded() bool {
	if l.pending == nil {
		return false
	}
	select {
	case <-l.pending:
	case <-l.ctx.Done():
		select {
		case <-l.pending:
		default:
			return false
		}
	}
	return l.outcome == OutcomeOK
}

// Escalates is the probability that the edge's answer will be let over; known is
// false before enough verdicts.
func (l *Look) Escalates() (p float64, known bool) {
	seen := l.f.seen(l.cell, l.model)
	if l.embedded() && seen >= after && l.weight.Benefit >= support {
		return l.near.Benefit, true
	}
	return l.f.words(l.cell, l.model, &l.prompt).Benefit, seen >= after
}

// Right is the probability that the edge's answer will be right, by similar prompts
// alone; known is false where too few are. l may be nil.
func (l *Look) Right() (p float64, known bool) {
	if l == nil || !l.embedded() || l.weight.Edge < support || l.f.seen(l.cell, l.model) < after {
		return 0, false
	}
	return l.near.Edge, true
}

// Outcome is how the embedding went, "" without an embedder or before its end. l
// may be nil.
func (l *Look) Outcome() Outcome {
	if l == nil || l.pending == nil {
		return ""
	}
	select {
	case <-l.pending:
		return l.outcome
	default:
		return ""
	}
}

// Verdict is what became of a request.
type Verdict struct {
	Escalated bool
	Right     float64 // probability that the edge was right, NaN where nothing tells
	Weight    float64
}

// Learn notes a verdict.
func (l *Look) Learn(v Verdict) {
	f, kept := l.f, 1.0
	if v.Escalated {
		kept = 0
	}
	f.mu.Lock()
	g := f.guesser(l.cell, l.model)
	if g != nil {
		g.seen++
		f.changes++
		g.scratch = prerouter.Features(g.scratch[:0], l.prompt)
		g.router.Count(g.scratch)
		g.router.Observe(g.scratch, kept, 1, v.Weight) // the benefit of the cloud stands for the wish for it
	}
	f.mu.Unlock()
	if g == nil || l.Outcome() != OutcomeOK {
		return // a vector that is late is not waited for
	}
	f.near.Lock()
	defer f.near.Unlock()
	if f.similar == nil || f.similar.Dimension() != len(l.vector) {
		f.similar = prerouter.NewSimilar(len(l.vector))
	}
	f.similar.Observe(l.vector, prerouter.Prediction{Edge: v.Right, Benefit: 1 - kept})
}

// guesser returns the class's, made if there is room. Verdicts on another model say
// nothing of this one. f.mu is held.
func (f *Foresight) guesser(cell, model string) *guesser {
	if f.model != model {
		f.model, f.cells = model, nil
		f.near.Lock()
		f.similar = nil
		f.near.Unlock()
	}
	g := f.cells[cell]
	if g == nil && len(f.cells) < mostCell {
		if f.cells == nil {
			f.cells = map[string]*guesser{}
		}
		g = &guesser{router: prerouter.NewRouter()}
		f.cells[cell] = g
	}
	return g
}

// words is what the words of a prompt say; one half where nothing is known.
func (f *Foresight) words(cell, model string, p *prerouter.Prompt) prerouter.Prediction {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.cells[cell]
	if g == nil || f.model != model {
		return prerouter.Prediction{Edge: .5, Benefit: .5}
	}
	g.scratch = prerouter.Features(g.scratch[:0], *p)
	return g.router.Predict(g.scratch)
}

// seen counts the verdicts of a class.
func (f *Foresight) seen(cell, model string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g := f.cells[cell]; g != nil && f.model == model {
		return g.seen
	}
	return 0
}

// Keep writes what was learned whenever it has changed, at most once in every, and
// when ctx ends.
func (f *Foresight) Keep(ctx context.Context, every time.Duration) error {
	if f.opt.Dir == "" {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := uint64(0) // what was opened has been saved
	for done := false; !done; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			done = true
		}
		f.mu.Lock()
		now := f.changes
		f.mu.Unlock()
		if now == last {
			continue
		}
		if err := f.save(); err != nil {
			f.opt.Log.Error("what prompts tell was not saved", "err", err)
			continue
		}
		last = now
	}
	return nil
}
