package loop

import (
	"time"

	"github.com/weirhq/weir/engine/batch"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/state"
)

// DefaultTPOT is the time per output token that is wanted where nobody says.
const DefaultTPOT = 50 * time.Millisecond

// chunk is how many prompt tokens the next step may hold beside decodes:
// Options.Chunk, or where the machine has been measured at most so many as leave
// each stream its time per token.
func (l *Loop) chunk() int {
	if l.o.Cost == nil || l.o.Chunk == 0 {
		return l.o.Chunk
	}
	now := time.Since(l.start)
	step, slack := cost.Step{}, time.Duration(0)
	begins := 0 // tokens before the prompt that is next
	for _, j := range l.running {
		if j.phase() != state.Decode {
			begins = max(begins, j.pos)
			continue
		}
		s := batch.Slack(now, j.time.First.Sub(l.start), j.made, j.tpot())
		if step.Decodes == 0 || s < slack {
			slack = s
		}
		step.Decodes++
		step.Context += j.pos
	}
	if step.Decodes == 0 {
		return l.o.Chunk
	}
	return batch.Chunk(slack, l.o.Chunk, func(n int) time.Duration {
		step.Prefill, step.Pairs = n, n*begins+n*n/2
		return time.Duration(l.o.Cost.Milliseconds(step) * float64(time.Millisecond))
	})
}

func (j *job) tpot() time.Duration {
	if j.req.TPOT > 0 {
		return j.req.TPOT
	}
	return DefaultTPOT
}
