package loop

import (
	"fmt"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/kvcache"
	"github.com/weirhq/weir/engine/worker/metrics"
)

const (
	// leastReuse is the shortest prefix worth to be taken over: a block.
	leastReuse = metrics.BlockSize
	// leastTail is how much must lie behind a shared prefix for an idle sequence
	// to be copied instead of cut: less is mostly an answer that nobody asks for
	// again.
	leastTail = 4 * metrics.BlockSize
	// mostSharedIdle is how many tokens idle sequences may hold while requests run
	// where they cost these time: about a millisecond per step for hub-cloud.
	mostSharedIdle = 512
)

// begin gives an admitted job a sequence, with the longest prefix of its tokens
// that any sequence holds. Its last token is always computed: for the logits. It
// is false when no sequence could be had.
func (l *Loop) begin(j *job) bool {
	from, n := l.lookUp(j)
	if n > 0 && from.Idle() && l.better(from, n) && l.runner.Forget(from.Seq, n) == nil {
		l.cache.Claim(from, n)
		j.seq, j.entry, j.pos = from.Seq, from, n
		return true
	}
	if !l.takeSeq(j, from) {
		return false
	}
	if n > 0 {
		l.copyPrefix(j, from, n)
	}
	return true
}

// better says whether an idle sequence is better taken over after n tokens than
// copied.
func (l *Loop) better(from *kvcache.Entry, n int) bool {
	return len(from.Tokens)-n < leastTail || len(l.free) == 0 && l.cache.Oldest(from) == nil
}

func (l *Loop) copyPrefix(j *job, from *kvcache.Entry, n int) {
	l.makeRoom(n, from)
	if err := l.runner.Copy(j.seq, from.Seq, n); err != nil {
		l.o.Log.Warn("prefix cannot be copied: it is computed", "tokens", n, "error", err)
		j.cached = 0
		return
	}
	j.pos = n
}

// lighten evicts what would slow the running requests down. Between requests all
// stays: the next turn of a conversation finds it.
func (l *Loop) lighten() {
	for l.info.SharedKV {
		if _, idle, _ := l.cache.IdleLoad(1); idle <= mostSharedIdle || !l.evict(nil) {
			return
		}
	}
}

// lookUp finds and counts what the prefix cache has of a job.
func (l *Loop) lookUp(j *job) (*kvcache.Entry, int) {
	if !l.o.PrefixCache {
		return nil, 0
	}
	from, n := l.cache.Match(j.req.Salt, j.tokens)
	if n = min(n, len(j.tokens)-1); n < leastReuse {
		from, n = nil, 0
	}
	if j.made == 0 {
		j.cached = min(n, len(j.req.Prompt))
	}
	l.lookedUp(len(j.tokens), n)
	return from, n
}

// takeSeq gives a job an empty sequence: a free one, or that of the idle one used
// longest ago, but not keep's. It is false, and the job has ended, when none
// could be emptied.
func (l *Loop) takeSeq(j *job, keep *kvcache.Entry) bool {
	for len(l.free) == 0 && l.evict(keep) {
	}
	last := len(l.free) - 1
	if last < 0 {
		l.finish(j, FinishError, fmt.Errorf("%w: no sequence can be emptied", ErrRunner))
		return false
	}
	j.seq, l.free = l.free[last], l.free[:last]
	return true
}

// enter puts what a job's sequence holds on the books of the prefix cache.
func (l *Loop) enter(j *job) {
	if !l.o.PrefixCache {
		return
	}
	c := kvcache.Content{Salt: j.req.Salt, Tokens: j.tokens[:j.pos:j.pos], Keys: j.req.Keys, Prompt: len(j.req.Prompt)}
	if j.entry == nil {
		j.entry = l.cache.Put(j.seq, c)
		return
	}
	l.cache.Update(j.entry, c)
}

// keep leaves the sequence of a job that ends to the prefix cache.
func (l *Loop) keep(j *job) {
	l.takeRerouted(j)
	if !l.o.PrefixCache || j.pos < leastReuse || l.runner.lost != nil {
		l.drop(j)
		return
	}
	l.enter(j)
	l.cache.LetGo(j.entry)
	j.entry = nil
	l.hold = false
}

// drop empties the sequence of a job.
func (l *Loop) drop(j *job) {
	l.takeRerouted(j)
	if j.entry != nil {
		l.cache.Remove(j.entry)
		j.entry = nil
	}
	l.empty(j.seq)
}

// takeRerouted notes what the runner did with a job's tokens before its sequence
// is another's.
func (l *Loop) takeRerouted(j *job) {
	if r, ok := l.runner.Runner.(engine.Rerouter); ok && l.runner.lost == nil {
		j.rerouted.Add(r.TakeRerouted(j.seq))
	}
}

// evict empties the idle sequence used longest ago, other than keep's. It is
// false when there is none.
func (l *Loop) evict(keep *kvcache.Entry) bool {
	e := l.cache.Oldest(keep)
	if e == nil {
		return false
	}
	l.cache.Remove(e)
	l.empty(e.Seq)
	l.o.Metrics.Evictions.Inc()
	return true
}

// empty makes a sequence free.
func (l *Loop) empty(s engine.Seq) {
	if l.runner.lost != nil {
		return
	}
	if err := l.runner.Forget(s, 0); err != nil {
		// The number is not used again: a sequence that cannot be emptied must
		// not be given to another request.
		l.o.Log.Error("sequence cannot be freed", "seq", s, "error", err)
		return
	}
	l.free = append(l.free, s)
	l.hold = false
}

// makeRoom evicts all but keep until n more tokens fit into the KV cache. Requests
// alone never fill it: engine/batch sees to that.
func (l *Loop) makeRoom(n int, keep *kvcache.Entry) {
	for _, j := range l.running {
		n += j.pos
	}
	for {
		_, idle, _ := l.cache.IdleLoad(1)
		if n+idle <= l.info.KVTokens || !l.evict(keep) {
			return
		}
	}
}
