package loop

import (
	"slices"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/batch"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/kvcache"
	"github.com/weirhq/weir/engine/worker/state"
	"github.com/weirhq/weir/engine/worker/text"
)

// job is one request inside the loop.
type job struct {
	req     Request
	stream  *Stream
	ticket  *state.Ticket
	rank    batch.Rank
	sampler *sample.Sampler
	filter  *text.Filter
	seq     engine.Seq
	entry   *kvcache.Entry // of seq, once the prompt or a prefix of it is there
	tokens  []engine.Token // prompt, resumed and generated
	given   int            // of them, how many came with the request
	pos     int            // how many of them the KV cache holds
	most    int
	made    int // generated here
	cached  int // prompt tokens found in the prefix cache at first admission
	done    bool
	time    Timing
	result  *Handoff

	rerouted engine.Rerouted
}

func (j *job) pending() int { return len(j.tokens) - j.pos }

// phase is how far the request is.
func (j *job) phase() state.Phase {
	if j.pending() > 1 || j.made == 0 {
		return state.Prefill
	}
	return state.Decode
}

// newJob prepares a request. It fails with ErrResumed.
func (l *Loop) newJob(r Request) (*job, error) {
	now := time.Now()
	since := now.Sub(l.start)
	j := &job{req: r, stream: &Stream{ready: make(chan struct{}, 1), ended: make(chan struct{}), left: l.left}, sampler: sample.New(r.Sample),
		filter: text.NewFilter(r.Stop), tokens: slices.Concat(r.Prompt, r.Resumed), time: Timing{Arrived: now},
		rank: batch.Rank{Priority: r.Priority, Arrived: since, Due: since + r.Due, Serial: l.serial.Add(1)}}
	j.given = len(j.tokens)
	j.most = j.given + r.MaxTokens
	j.stream.result = Result{PromptTokens: len(r.Prompt), Timing: j.time}
	if len(r.Resumed) > 0 {
		j.sampler.Skip(len(r.Resumed))
		if !j.filter.Resume(l.o.Pieces.Text(r.Resumed), r.Shown) {
			return nil, ErrResumed
		}
	}
	return j, nil
}

// sort puts waiting and running requests in order of service. Age changes the
// order slowly, arrivals at once.
func (l *Loop) sort() {
	now := time.Since(l.start)
	if !l.unsure && now-l.sorted < time.Second {
		return
	}
	order := func(a, b *job) int { return batch.Compare(a.rank, b.rank, now) }
	slices.SortStableFunc(l.queue, order)
	slices.SortStableFunc(l.running, order)
	l.sorted, l.unsure = now, false
}
