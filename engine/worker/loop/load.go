package loop

import (
	"github.com/weirhq/weir/engine/batch"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/engine/worker/state"
)

// smooth is a running mean in which the last ten or so values count.
func smooth(mean, x float64) float64 {
	if mean == 0 {
		return x
	}
	return mean + (x-mean)/10
}

// modelled is what the cost model says of a step, in milliseconds; 0 without one.
// It is for before the step's tokens are counted.
func (l *Loop) modelled(spans []batch.Span) float64 {
	if l.o.Cost == nil {
		return 0
	}
	var s cost.Step
	for _, span := range spans {
		j := l.running[span.Index]
		if j.phase() == state.Decode {
			s.Decodes++
			s.Context += j.pos
		} else {
			s.Prefill += span.Tokens
			s.Pairs += span.Tokens*j.pos + span.Tokens*span.Tokens/2
		}
	}
	return l.o.Cost.Milliseconds(s)
}

// lookedUp counts a look into the prefix cache.
func (l *Loop) lookedUp(tokens, found int) {
	l.load.PrefixQueries += uint64(tokens)
	l.load.PrefixHits += uint64(found)
	l.load.HitRate += (float64(found)/float64(tokens) - l.load.HitRate) / 10
	l.o.Metrics.PrefixQueries.Add(float64(tokens))
	l.o.Metrics.PrefixHits.Add(float64(found))
}

func blocks(tokens int) int { return (tokens + metrics.BlockSize - 1) / metrics.BlockSize }

// tell puts the load on the board and into the gauges.
func (l *Loop) tell() {
	s := &l.load
	s.Running, s.Waiting = len(l.running), int(l.waiting.Load())
	s.PrefillTokensWaiting, s.DecodeCtxTokens = 0, 0
	s.KVBlockSize, s.KVBlocksTotal = metrics.BlockSize, l.info.KVTokens/metrics.BlockSize
	held := 0
	_, _, cached := l.cache.IdleLoad(metrics.BlockSize)
	s.CachedBlocks, s.KVBlocksUsed = cached, cached
	for _, j := range l.running {
		held += j.pos
		s.KVBlocksUsed += blocks(j.pos)
		if j.phase() == state.Decode {
			s.DecodeCtxTokens += j.pos
		} else {
			s.PrefillTokensWaiting += j.pending()
		}
	}
	for _, j := range l.queue {
		if j.req.Import == nil {
			s.PrefillTokensWaiting += j.pending()
		}
	}
	l.o.Board.SetLoad(*s)
	m := l.o.Metrics
	m.Running.Set(float64(s.Running))
	m.Waiting.Set(float64(len(l.queue)))
	m.KVUsage.Set(float64(held) / float64(l.info.KVTokens))
}
