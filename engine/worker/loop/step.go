package loop

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/batch"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/state"
)

// compute runs the spans and takes a token for each that asked for logits.
func (l *Loop) compute(spans []batch.Span) error {
	l.feed, l.whom = l.feed[:0], l.whom[:0]
	tokens := 0
	for _, s := range spans {
		j := l.running[s.Index]
		l.feed = append(l.feed, engine.Span{Seq: j.seq, Pos: j.pos, Tokens: j.tokens[j.pos : j.pos+s.Tokens], Logits: s.Logits})
		l.whom = append(l.whom, j.stream)
		tokens += s.Tokens
	}
	l.makeRoom(tokens, nil)
	began := time.Now()
	l.stop.begin(l.whom)
	rows, err := l.runner.Step(l.feed)
	l.stop.end()
	if err != nil {
		return l.failed(spans, err)
	}
	l.badRow = 0
	l.o.Metrics.IterationTokens.Observe(float64(tokens))
	now := time.Now()
	l.load.Steps++
	l.load.StepMS = smooth(l.load.StepMS, float64(now.Sub(began).Microseconds())/1000)
	l.load.ModelMS = smooth(l.load.ModelMS, l.modelled(spans))
	for _, s := range spans {
		j := l.running[s.Index]
		l.count(j, s.Tokens)
		j.pos += s.Tokens
		if s.Logits {
			if j.made == 0 {
				l.enter(j) // its prompt is there
			}
			l.take(j, rows[0], now)
			rows = rows[1:]
		}
	}
	return nil
}

// count adds to the tokens computed for prompts.
func (l *Loop) count(j *job, tokens int) {
	if prompt := min(tokens, j.given-j.pos); prompt > 0 {
		phase := "prefill"
		if j.req.DecodeLeg {
			phase = "decode_leg"
		}
		l.o.Metrics.Computed.WithLabelValues(phase).Add(float64(prompt))
	}
}

// failed handles a step that did not happen. Whom a stopped one was for are reaped
// next. A full KV cache costs the prefix cache its oldest sequence, or the last
// request its own, to be computed anew later; any other failure ends the requests
// of the step.
func (l *Loop) failed(spans []batch.Span, err error) error {
	if errors.Is(err, engine.ErrStopped) {
		return nil
	}
	if errors.Is(err, engine.ErrKVFull) {
		if l.evict(nil) {
			return nil
		}
		if len(l.running) > 1 {
			l.giveUp(len(l.running)-1, "kv cache is full in spite of reservations")
			l.hold = true // or it would be admitted and fail again at once
			return nil
		}
	}
	l.o.Log.Error("step failed", "error", err, "requests", len(spans))
	for _, s := range spans {
		j := l.running[s.Index]
		l.drop(j)
		l.finish(j, FinishError, fmt.Errorf("%w: %w", ErrRunner, err))
	}
	if l.badRow++; l.badRow >= maxBadRow {
		return fmt.Errorf("%d steps failed in a row: %w", l.badRow, err)
	}
	return nil
}

// giveUp puts running[i] back into the queue.
func (l *Loop) giveUp(i int, why string) {
	j := l.running[i]
	l.o.Log.Warn(why+": a request is computed anew", "operation", j.req.Operation, "tokens", j.pos)
	l.drop(j)
	j.pos = 0
	l.running = slices.Delete(l.running, i, i+1)
	l.enqueue(j)
	l.waiting.Add(1)
	j.ticket.Set(state.Waiting, j.made)
	l.o.Metrics.Preemptions.Inc()
}

// take samples j's next token from a row and delivers it.
func (l *Loop) take(j *job, row []float32, now time.Time) {
	if o := j.stream.orders.Swap(nil); o != nil && !j.req.Export && l.obey(j, row, o, now) {
		return
	}
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
		l.drop(j)
		l.finish(j, FinishError, fmt.Errorf("%w: no finite logit", ErrRunner))
		return
	}
	lp := sample.Logprob{Token: t}
	if j.req.Logprobs {
		lp.Logprob = float32(float64(row[t]) - lse)
	}
	s.pending.Tokens = append(s.pending.Tokens, lp)
	j.made++
	s.begun.Store(true)
	finish := l.show(j, t)
	s.mu.Unlock()
	l.timing(j, now)
	if j.req.Export {
		j.result = l.export(j, 0, row)
	}
	j.tokens = append(j.tokens, t)
	if finish == "" {
		j.ticket.Set(j.phase(), j.made)
		s.notify()
		return
	}
	l.keep(j)
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

// export takes a job's state along, nil when that fails. All its tokens are in
// the KV cache, and row is the logits after them.
func (l *Loop) export(j *job, from int, row []float32) *Handoff {
	kv, err := l.runner.ExportKV(nil, j.seq, from)
	if err != nil {
		l.o.Log.Error("kv cannot be exported", "operation", j.req.Operation, "error", err)
		return nil
	}
	return &Handoff{Tokens: slices.Clone(j.tokens[:j.pos]), Logits: slices.Clone(row), KV: [][]byte{kv}, From: from}
}

// obey copies a job's state for a move, or ends the job with it: then its next
// token is sampled from row elsewhere. It is false when the job goes on here.
func (l *Loop) obey(j *job, row []float32, o *order, now time.Time) bool {
	if !o.leave {
		o.state <- l.export(j, o.from, nil)
		return false
	}
	if j.result = l.export(j, o.from, row); j.result == nil {
		if o.stays != nil {
			o.stays()
		}
		return false
	}
	j.result.Stopped = now
	l.keep(j)
	l.finish(j, FinishMigrated, nil)
	return true
}
