package learning

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/cascade/verifier"
)

// Limits bound what is asked of the cloud for labels alone.
type Limits struct {
	PerHour int   // calls; 0 is none at all
	PerDay  int64 // nano-dollars a day (UTC)
}

// Pair is a judged answer of the edge, as far as its label needs it.
type Pair struct {
	Operation, Cell, Key string
	Model                string    // fingerprint of the edge model
	Features             []float64 // of its signals
	Answer               string
	Propensity           float64 // with which its label is seen
	Votes                *verifier.Votes
	Poll                 Poll // asks for Votes before the label; nil where none are wanted
}

// Answer is what the cloud said and what it took.
type Answer struct {
	Text     string
	CostNano int64
	Took     time.Duration
}

// Ask asks the cloud for its answer to the request of a Pair. With an error the
// answer's cost counts too: the cloud may have made one that did not arrive.
type Ask func(context.Context) (Answer, error)

const (
	shadowQueue   = 64
	shadowTimeout = 2 * time.Minute
	// idlePatience is how long a call waits, in the queue and then for an idle
	// link, looking every idlePoll.
	idlePatience = 10 * time.Minute
	idlePoll     = 50 * time.Millisecond
	// A call counts as milli in the bucket, which holds ten minutes' worth.
	milli = 1000
)

// shadows are the calls that wait and what may still be spent on such calls.
type shadows struct {
	limits Limits
	queue  chan shadow

	mu      sync.Mutex
	bucket  *control.Bucket
	day     int64
	spent   int64 // today
	logged  int64 // of spent, what the log held when it was last read
	pending int64 // promised to calls under way
	stalled bool  // calls are dropped: the link was not idle in time
}

type shadow struct {
	pair  Pair
	ask   Ask
	bound int64
	until time.Time // it is dropped
}

func (s *shadows) open(l Limits, now time.Time) {
	perHour := float64(l.PerHour) * milli
	s.limits, s.queue = l, make(chan shadow, shadowQueue)
	s.bucket = control.NewBucket(perHour/3600, max(milli, int64(perHour/6)), now)
}

// take promises a call that costs at most bound, or reports that the limits do
// not hold one now.
func (s *shadows) take(bound int64, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(now)
	if !s.fits(bound, now) || !s.bucket.Reserve(now, milli) {
		return false
	}
	s.pending += bound
	return true
}

func (s *shadows) fits(bound int64, now time.Time) bool {
	return s.limits.PerHour > 0 && !s.stalled && len(s.queue) < cap(s.queue) && s.bucket.Level(now) >= milli &&
		bound <= s.limits.PerDay-s.spent-s.pending
}

func (s *shadows) release(bound int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending -= bound
}

// drop ends a call that was not made in time.
func (s *shadows) drop(bound int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending -= bound
	s.stalled = true
}

// settle turns the promise of a call into what it cost.
func (s *shadows) settle(bound, cost int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(now)
	s.pending -= bound
	s.spent += cost
}

// charge notes what a logged call cost: settle has counted it, unless the log is
// read again.
func (s *shadows) charge(r *journal.Record) {
	if r.Kind != journal.KindLabel || !r.Shadow {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(time.Unix(0, r.UnixNS))
	if r.UnixNS/int64(24*time.Hour) == s.day {
		s.logged += r.CostNano
		s.spent = max(s.spent, s.logged)
	}
}

// turn begins a new day.
func (s *shadows) turn(now time.Time) {
	if day := now.Unix() / 86400; day > s.day {
		s.day, s.spent, s.logged = day, 0, 0
	}
}

func (s *shadows) today() (day, spent int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.day, s.spent
}

// covered is what a snapshot holds: the log behind it has the rest.
func (s *shadows) covered() (day, spent int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.day, s.logged
}

func (s *shadows) restore(day, spent int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.day, s.spent, s.logged = day, spent, spent
}

// Draw says with which probability the kept answer of a request is also to be
// asked of the cloud, which costs at most bound, and whether this one is. share
// is the tenant's own; nil leaves it to the cell. The limits are looked at before
// the draw, so that the probability holds: it is 0 while they are used up. A
// chosen request is promised its call: Shadow follows.
func (l *Learner) Draw(operation, cell string, share *float64, bound int64) (propensity float64, chosen bool) {
	propensity = l.View(cell).Shadow
	if share != nil {
		propensity = *share
	}
	if propensity <= 0 || !l.open(bound) {
		l.counts.shadow("excluded")
		return 0, false
	}
	return propensity, uniform(operation) < propensity && l.shadows.take(bound, l.opt.Now())
}

// open reports whether the limits hold another call now. While calls are dropped
// they do not: a drawn propensity has to hold.
func (l *Learner) open(bound int64) bool {
	s, now, idle := &l.shadows, l.opt.Now(), l.opt.Idle()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(now)
	s.stalled = s.stalled && !idle
	return s.fits(bound, now)
}

// uniform maps an operation to [0, 1): the same one always to the same number,
// so that a decision can be replayed.
func uniform(operation string) float64 {
	sum := sha256.Sum256([]byte(operation))
	return float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
}

// Shadow queues the call of a request that Draw chose.
func (l *Learner) Shadow(p Pair, bound int64, ask Ask) {
	select {
	case l.shadows.queue <- shadow{p, ask, bound, l.opt.Now().Add(idlePatience)}:
	default: // others were faster than the last look at the queue
		l.shadows.release(bound)
		l.counts.shadow("dropped")
	}
}

// Run makes the calls, one at a time and only while nothing else is on its way
// to the cloud, and asks for votes on escalated answers, until ctx ends.
func (l *Learner) Run(ctx context.Context) error {
	var voting sync.WaitGroup
	voting.Go(func() { l.runPolls(ctx) })
	defer voting.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-l.shadows.queue:
			l.counts.shadow(l.run(ctx, s))
		}
	}
}

// run makes one call and says how it ended.
func (l *Learner) run(ctx context.Context, s shadow) string {
	if !l.awaitIdle(ctx, s.until) {
		l.shadows.drop(s.bound)
		return "dropped"
	}
	ctx, cancel := context.WithTimeout(ctx, shadowTimeout)
	defer cancel()
	got, err := s.ask(ctx)
	l.shadows.settle(s.bound, got.CostNano, l.opt.Now())
	if err != nil {
		if got.CostNano > 0 { // the log keeps the cost
			l.label(s.pair, Answer{CostNano: got.CostNano, Took: got.Took}, true)
		}
		if ctx.Err() == nil {
			l.opt.Logger.Info("no shadow label", "operation", s.pair.Operation, "err", err)
		}
		return "failed"
	}
	s.pair.hear(ctx)
	l.label(s.pair, got, true)
	return "labelled"
}

func (l *Learner) awaitIdle(ctx context.Context, until time.Time) bool {
	patience := time.NewTimer(until.Sub(l.opt.Now()))
	defer patience.Stop()
	tick := time.NewTicker(idlePoll)
	defer tick.Stop()
	for !l.opt.Idle() {
		select {
		case <-tick.C:
		case <-patience.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}
