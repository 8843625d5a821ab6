package pool

import (
	"time"

	"github.com/weirhq/weir/cascade/control"
)

const (
	// missesAllowed is how many probes in a row may time out before an instance
	// counts as dead: on a busy machine one late answer says little. A refused
	// connection or an error status counts at once.
	missesAllowed = 3
	// slowStart is how long an instance that came back takes less than its share,
	// and firstShare with how much it begins.
	slowStart  = 10 * time.Second
	firstShare = .1
)

// vitals is the health of one instance: suspect before dead. Hard facts are its
// own word or a refused connection; soft facts may be the observer's own fault
// and are therefore capped (see capped). Times are on the pool's clock.
type vitals struct {
	up       bool   // the last word of a probe
	hard     bool   // not up, and no doubt about it
	problem  string // why it is not up, or suspect
	misses   int    // probes in a row that were late
	suspect  bool
	wasUp    bool          // it has been up before
	back     time.Duration // up again since
	breaker  control.Breaker
	trial    bool
	failing  string        // why it degrades while it still answers
	rests    time.Duration // asked for no new work until then
	failures int           // of requests, since the start
	last     string        // the newest of them
	lastAt   time.Duration
}

// healthy takes a good probe.
func (v *vitals) healthy(now time.Duration) {
	if !v.up {
		v.back = now
		if !v.wasUp {
			v.back = now - slowStart // the first start of all needs no care
		}
	}
	v.up, v.wasUp, v.hard, v.suspect, v.misses, v.problem = true, true, false, false, 0, ""
}

// ill takes a probe that failed. hard is no doubt about it.
func (v *vitals) ill(problem string, hard bool) {
	v.misses++
	switch {
	case hard, !v.wasUp:
		v.up, v.hard, v.problem = false, true, problem
	case v.misses >= missesAllowed:
		v.up, v.problem = false, problem
	default:
		v.suspect, v.problem = true, problem
	}
}

// reborn forgets what a process did that is gone. Whether its successor is up,
// a probe has said or will say.
func (v *vitals) reborn() {
	v.breaker, v.trial, v.rests, v.suspect, v.misses, v.failing = control.Breaker{}, false, 0, false, 0, ""
}

// failed takes the failure of a request.
func (v *vitals) failed(problem string, suspect bool, now time.Duration) {
	v.failures++
	v.last, v.lastAt = problem, now
	v.result(false, now)
	if suspect {
		v.suspect, v.problem = true, problem
	}
}

// result tells the breaker. One that closes starts slowly.
func (v *vitals) result(ok bool, now time.Duration) {
	open := v.breaker.Open(clock(now)) || v.trial
	v.breaker.Result(ok, clock(now))
	if ok && open && !v.breaker.Open(clock(now)) {
		v.back = now
	}
	v.trial = false
}

// begin notes that a leg goes there. It reports whether the leg is the trial of
// a breaker that was open.
func (v *vitals) begin(now time.Duration) bool {
	before := v.breaker
	if !v.breaker.Allow(clock(now)) {
		return false // chosen although it is open, because nothing else is there
	}
	v.trial = v.breaker != before
	return v.trial
}

// out reports whether the instance should get nothing, and whether that is
// hard.
func (v *vitals) out(now time.Duration) (out, hard bool) {
	if !v.up && (v.hard || !v.wasUp) {
		return true, true
	}
	return !v.up || v.failing != "" || v.breaker.Open(clock(now)), false
}

// share is the part of a fair load that the instance takes, for slow start.
func (v *vitals) share(now time.Duration) float64 {
	since := now - v.back
	if since >= slowStart {
		return 1
	}
	return max(firstShare, float64(since)/float64(slowStart))
}

// breakerState names the breaker's state for people.
func (v *vitals) breakerState(now time.Duration) string {
	next := v.breaker
	switch {
	case v.trial, next.Allow(clock(now)) && next != v.breaker:
		return "half_open"
	case v.breaker.Open(clock(now)):
		return "open"
	}
	return "closed"
}

// untried is for how long requests could have tried an instance whose breaker's
// pause is over, and none has come; 0 where that is not so.
func (v *vitals) untried(now time.Duration) time.Duration {
	due := v.breaker.Due()
	if due.IsZero() || v.trial {
		return 0
	}
	return max(0, clock(now).Sub(due))
}

// clock turns the pool's time into what a Breaker takes.
func clock(now time.Duration) time.Time { return time.Unix(1, 0).Add(now) }

// capped bounds how many of n instances may be out at a time by soft facts: at
// most half. When more look dead the observer is the likelier cause, and a
// suspect is better than nobody (peers.md 30; Envoy's outlier detection does
// the same).
func capped(n int) int { return n / 2 }
