package batch

import (
	"cmp"
	"time"
)

// Rank is what decides who is served first. Times are on one clock of the
// caller.
type Rank struct {
	Priority int           // vLLM's: the lower the earlier
	Arrived  time.Duration // when the request came
	Due      time.Duration // when its first token is wanted
	Serial   uint64        // order of arrival, unique
}

// Aging is how long a request waits until it counts as one priority more
// urgent.
const Aging = 30 * time.Second

// urgency is a rank's priority at a time: waiting makes it more urgent, so that
// no stream of urgent requests starves another for ever.
func (r Rank) urgency(now time.Duration) int { return r.Priority - int((now-r.Arrived)/Aging) }

// Compare orders requests at a time: by priority with aging, then the earliest
// due first (EDF), then by arrival. Due times lie a bounded time after arrival,
// so among equals everybody's turn comes.
func Compare(a, b Rank, now time.Duration) int {
	return cmp.Or(cmp.Compare(a.urgency(now), b.urgency(now)), cmp.Compare(a.Due, b.Due), cmp.Compare(a.Serial, b.Serial))
}
