package loop

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/batch"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/engine/worker/state"
)

// step composes and runs one step.
func (l *Loop) step() error {
	step := l.compose()
	for range step.GiveUp {
		l.giveUp(len(l.running)-1, "outputs have outgrown the kv cache")
	}
	had := len(l.running)
	l.admit(step.Admit)
	spans := l.trim(had, step.Spans)
	if len(spans) == 0 {
		l.sweep() // imports may have ended at their first token
		if l.sequences() == 0 {
			return errors.New("no sequence can be used any more")
		}
		return nil
	}
	err := l.compute(spans)
	l.sweep()
	return err
}

// compose decides on the next step.
func (l *Loop) compose() batch.Step {
	l.sort()
	l.state.Running, l.state.Waiting = l.state.Running[:0], l.state.Waiting[:0]
	for _, j := range l.running {
		l.state.Running = append(l.state.Running, batch.Running{Pending: j.pending(), Held: j.pos, Most: j.most})
	}
	candidates := l.queue[:min(len(l.queue), l.info.MaxSeqs)]
	if l.hold {
		candidates = nil
	}
	for _, j := range candidates {
		w := batch.Waiting{Pending: j.pending(), Most: j.most}
		if j.req.Import != nil {
			w.Pending, w.Held = 0, w.Pending
		}
		l.state.Waiting = append(l.state.Waiting, w)
	}
	limits := l.limits
	limits.MaxSeqs = l.sequences() // fewer when one could not be freed
	limits.Chunk = l.chunk()
	step := batch.Compose(l.state, limits, l.spans)
	l.spans = step.Spans
	l.blocked(step.Blocked)
	return step
}

// sequences is how many requests could run at a time.
func (l *Loop) sequences() int {
	idle, _, _ := l.cache.IdleLoad(1)
	return len(l.running) + len(l.free) + idle
}

// admit gives the first n waiting requests a sequence.
func (l *Loop) admit(n int) {
	if n == 0 {
		return
	}
	now := time.Now()
	for _, j := range l.queue[:n] {
		l.waiting.Add(-1)
		if j.time.Admitted.IsZero() {
			j.time.Admitted = now
			l.o.Metrics.Queue.Observe(now.Sub(j.time.Arrived).Seconds())
			l.o.Metrics.PromptTokens.Add(float64(len(j.req.Prompt)))
			l.o.Metrics.PromptSize.Observe(float64(len(j.req.Prompt)))
		}
		j.ticket.Set(state.Prefill, j.made)
		l.running = append(l.running, j)
		l.unsure = true
		switch {
		case j.req.Import == nil:
			l.begin(j)
		case l.takeSeq(j, nil):
			l.importKV(j)
		}
	}
	l.queue = slices.Delete(l.queue, 0, n)
	l.lighten()
}

// trim takes from the spans of admitted requests what they turned out to have in
// the prefix cache.
func (l *Loop) trim(had int, spans []batch.Span) []batch.Span {
	for i := range spans {
		if s := &spans[i]; s.Index >= had {
			left := l.running[s.Index].pending()
			s.Tokens = min(s.Tokens, left)
			s.Logits = s.Tokens == left
		}
	}
	return slices.DeleteFunc(spans, func(s batch.Span) bool { return l.running[s.Index].done })
}

// importKV fills an admitted job's sequence from its hand-off and takes the
// first token from the row that came with it. When the runner refuses the
// bytes the prompt is computed here.
func (l *Loop) importKV(j *job) {
	h := j.req.Import
	j.req.Import = nil // the bytes are not needed twice
	defer h.done()
	l.makeRoom(j.given, nil)
	n, err := l.runner.ImportKV(j.seq, h.KV...)
	if err == nil && n != j.given {
		err = fmt.Errorf("%w: %d tokens, the request has %d", engine.ErrKVFormat, n, j.given)
	}
	if err != nil {
		l.o.Log.Warn("hand-off cannot be used: the prompt is computed here", "operation", j.req.Operation, "error", err)
		l.o.Metrics.PDFallback.WithLabelValues(metrics.FallbackImport).Inc()
		if err := l.runner.Forget(j.seq, 0); err != nil {
			l.finish(j, FinishError, fmt.Errorf("%w: %w", ErrRunner, err))
		}
		return
	}
	j.pos = n
	l.enter(j)
	if !h.Stopped.IsZero() {
		l.o.Metrics.Downtime.Observe(time.Since(h.Stopped).Seconds())
		l.load.MigratedIn++
		l.load.DowntimeMS = smooth(l.load.DowntimeMS, float64(time.Since(h.Stopped).Microseconds())/1000)
	}
	l.take(j, h.Logits, time.Now())
}
