package loop

import (
	"math"
	"slices"
	"time"

	"github.com/weirhq/weir/engine/batch"
)

var negInf = float32(math.Inf(-1))

// timing observes a token's arrival.
func (l *Loop) timing(j *job, now time.Time) {
	m := l.o.Metrics
	if j.time.First.IsZero() {
		j.time.First = now
		m.TTFT.Observe(now.Sub(j.time.Arrived).Seconds())
		m.Prefill.Observe(now.Sub(j.time.Admitted).Seconds())
	} else {
		m.ITL.Observe(now.Sub(j.time.Last).Seconds())
	}
	j.time.Last = now
	m.GenerationTokens.Inc()
}

// finish ends a job, whose sequence is free already, exactly once.
func (l *Loop) finish(j *job, why Finish, err error) {
	j.done = true
	if j.req.Import != nil { // ended before it was admitted
		j.req.Import.done()
	}
	l.observe(j, why)
	s := j.stream
	s.unwatch()
	s.mu.Lock()
	s.pending.Finish = why
	s.err = err
	s.result.CompletionTokens = j.made
	s.result.CachedTokens = j.cached
	s.result.Timing, s.result.Rerouted = j.time, j.rerouted
	s.result.Handoff = j.result
	if why == FinishMigrated {
		s.result.Generated = slices.Clone(j.tokens[len(j.req.Prompt):])
		s.result.Unshown = j.filter.Unshown()
	}
	s.mu.Unlock()
	j.ticket.End()
	close(s.ended)
	s.notify()
}

func (l *Loop) observe(j *job, why Finish) {
	m := l.o.Metrics
	m.Success.WithLabelValues(string(why)).Inc()
	now := time.Now()
	m.E2E.Observe(now.Sub(j.time.Arrived).Seconds())
	if !j.time.Admitted.IsZero() {
		m.Inference.Observe(now.Sub(j.time.Admitted).Seconds())
		m.GenerationSize.Observe(float64(j.made))
	}
	if j.made > 0 {
		m.Decode.Observe(j.time.Last.Sub(j.time.First).Seconds())
	}
	if j.made > 1 {
		m.TPOT.Observe(j.time.Last.Sub(j.time.First).Seconds() / float64(j.made-1))
	}
}

// blocked tells why requests wait, in vLLM's words.
func (l *Loop) blocked(r batch.Reason) {
	capacity, deferred := 0, 0
	switch n := len(l.queue); r {
	case batch.NoSequence, batch.NoKV:
		capacity = n
	case batch.NoBudget:
		deferred = n
	}
	l.o.Metrics.WaitingBy.WithLabelValues("capacity").Set(float64(capacity))
	l.o.Metrics.WaitingBy.WithLabelValues("deferred").Set(float64(deferred))
}
