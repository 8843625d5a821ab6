package loop

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/batch"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/metrics"
)

// compute runs the spans and takes a token for each that asked for logits.
func (l *Loop) compute(spans []batch.Span) error {
	l.feed = l.feed[:0]
	tokens := 0
	for _, s := range spans {
		j := l.running[s.Index]
		l.feed = append(l.feed, engine.Span{Seq: j.seq, Pos: j.pos, Tokens: j.tokens[j.pos : j.pos+s.Tokens], Logits: s.Logits})
		tokens += s.Tokens
	}
	rows, err := l.o.Runner.Step(l.feed)
	if err != nil {
		return l.failed(spans, err)
	}
	l.badRow = 0
	l.o.Metrics.IterationTokens.Observe(float64(tokens))
	now := time.Now()
	for _, s := range spans {
		j := l.running[s.Index]
		l.count(j, s.Tokens)
		j.pos += s.Tokens
		if s.Logits {
			l.take(j, rows[0], now)
			rows = rows[1:]
		}
	}
	return nil
}

// count adds to the tokens computed for prompts.
func (l *Loop) count(j *job, tokens int) {
	if prompt := min(tokens, len(j.req.Prompt)-j.pos); prompt > 0 {
		phase := "prefill"
		if j.req.DecodeLeg {
			phase = "decode_leg"
		}
		l.o.Metrics.Computed.WithLabelValues(phase).Add(float64(prompt))
	}
}

// failed handles a step that did not happen. A full KV cache costs the newest
// request its sequence, to be computed anew later; any other failure ends the
// requests of the step.
func (l *Loop) failed(spans []batch.Span, err error) error {
	if errors.Is(err, engine.ErrKVFull) {
		if v := batch.Victim(l.state.Running); v >= 0 {
			l.preempt(v)
			return nil
		}
	}
	l.o.Log.Error("step failed", "error", err, "requests", len(spans))
	for _, s := range spans {
		j := l.running[s.Index]
		l.release(j)
		l.finish(j, FinishError, fmt.Errorf("%w: %w", ErrRunner, err))
	}
	if l.badRow++; l.badRow >= maxBadRow {
		return fmt.Errorf("%d steps failed in a row: %w", l.badRow, err)
	}
	return nil
}

// preempt puts running[i] back to the head of the queue.
func (l *Loop) preempt(i int) {
	j := l.running[i]
	l.o.Log.Warn("kv cache is full in spite of reservations: a request is computed anew", "tokens", j.pos)
	l.release(j)
	l.hold = true // or it would be admitted and fail again at once
	j.pos = 0
	l.running = slices.Delete(l.running, i, i+1)
	l.queue = slices.Insert(l.queue, 0, j)
	l.waiting.Add(1)
	l.o.Metrics.Preemptions.Inc()
}

// importKV fills an admitted job's sequence from its hand-off and takes the
// first token from the row that came with it. When the runner refuses the
// bytes the prompt is computed here.
func (l *Loop) importKV(j *job) {
	h := j.req.Import
	j.req.Import = nil // the bytes are not needed twice
	defer h.done()
	n, err := l.o.Runner.ImportKV(j.seq, h.KV)
	if err == nil && n != len(j.req.Prompt) {
		err = fmt.Errorf("%w: %d tokens, the prompt has %d", engine.ErrKVFormat, n, len(j.req.Prompt))
	}
	if err != nil {
		l.o.Log.Warn("hand-off cannot be used: the prompt is computed here", "error", err)
		l.o.Metrics.PDFallback.WithLabelValues(metrics.FallbackImport).Inc()
		if err := l.o.Runner.Forget(j.seq, 0); err != nil {
			l.finish(j, FinishError, fmt.Errorf("%w: %w", ErrRunner, err))
		}
		return
	}
	j.pos = n
	l.take(j, h.Logits, time.Now())
}

// take samples j's next token from a row and delivers it.
func (l *Loop) take(j *job, row []float32, now time.Time) {
	lse := 0.0
	if j.req.Logprobs {
		lse = sample.LogSumExp(row)
	}
	s := j.stream
	s.mu.Lock()
	if j.req.Logprobs && j.req.Top > 0 {
		s.pending.Top = sample.Top(s.pending.Top, row, lse, j.req.Top)
	}
	t, ok := l.choose(j, row)
	if !ok {
		s.mu.Unlock()
		l.release(j)
		l.finish(j, FinishError, fmt.Errorf("%w: no finite logit", ErrRunner))
		return
	}
	lp := sample.Logprob{Token: t}
	if j.req.Logprobs {
		lp.Logprob = float32(float64(row[t]) - lse)
	}
	s.pending.Tokens = append(s.pending.Tokens, lp)
	j.made++
	finish := l.show(j, t)
	s.mu.Unlock()
	l.timing(j, now)
	if j.req.Export {
		l.export(j, row)
	}
	if finish == "" {
		j.tokens = append(j.tokens, t)
		s.notify()
		return
	}
	l.release(j)
	l.finish(j, finish, nil)
}

// choose samples with end tokens masked while MinTokens asks for more.
func (l *Loop) choose(j *job, row []float32) (engine.Token, bool) {
	if j.made >= j.req.MinTokens {
		return j.sampler.Next(row, &l.scratch)
	}
	var kept [8]float32
	ends := l.o.Pieces.endList
	ends = ends[:min(len(ends), len(kept))]
	for i, t := range ends {
		kept[i], row[t] = row[t], negInf
	}
	t, ok := j.sampler.Next(row, &l.scratch)
	for i, e := range ends {
		row[e] = kept[i]
	}
	return t, ok
}

// show adds t's text to the stream, whose lock is held, and says whether the
// generation ends with it.
func (l *Loop) show(j *job, t engine.Token) Finish {
	p := &j.stream.pending
	if l.o.Pieces.IsEnd(t) && !j.req.IgnoreEOS {
		p.Text = j.filter.Flush(p.Text)
		return FinishStop
	}
	var stopped bool
	if p.Text, stopped = j.filter.Push(p.Text, l.o.Pieces.Bytes(t)); stopped {
		return FinishStop
	}
	if j.made >= j.req.MaxTokens {
		p.Text = j.filter.Flush(p.Text)
		return FinishLength
	}
	return ""
}

func (l *Loop) export(j *job, row []float32) {
	kv, err := l.o.Runner.ExportKV(nil, j.seq)
	if err != nil {
		l.o.Log.Error("kv cannot be exported: the decode worker computes the prompt", "error", err)
		return
	}
	j.result = &Handoff{Tokens: j.req.Prompt, Logits: slices.Clone(row), KV: kv}
}
