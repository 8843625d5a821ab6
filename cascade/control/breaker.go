package control

import "time"

// Breaker stops asking a target that keeps failing. It opens when the moving
// share of failures passes one half, and after a pause lets one probe through:
// a success closes it, a failure doubles the pause up to its bound. The zero
// value is closed.
type Breaker struct {
	// First and Most bound the pause; 0 counts as 1 s and 60 s.
	First, Most time.Duration

	failures float64 // moving share
	pause    time.Duration
	until    time.Time // of the pause; zero when closed
	probing  bool
}

// failureWeight of the newest call: three failures in a row open a breaker that
// had only successes.
const failureWeight = .25

// Allow reports whether the target may be asked now. After a pause it allows
// one probe until Result or Release is told of it.
func (b *Breaker) Allow(now time.Time) bool {
	switch {
	case b.until.IsZero():
		return true
	case now.Before(b.until) || b.probing:
		return false
	}
	b.probing = true
	return true
}

// Open reports whether the breaker is open, without starting a probe.
func (b *Breaker) Open(now time.Time) bool {
	return !b.until.IsZero() && (now.Before(b.until) || b.probing)
}

// Due is when the newest pause ends, after which one probe is allowed; zero where
// the breaker is closed.
func (b *Breaker) Due() time.Time { return b.until }

// Result notes how a call ended. Only failures of the target count: a refusal
// of the request by the target is a success.
func (b *Breaker) Result(ok bool, now time.Time) {
	x := 0.0
	if !ok {
		x = 1
	}
	b.failures += failureWeight * (x - b.failures)
	switch {
	case ok && (b.probing || b.until.IsZero() || !now.Before(b.until)):
		*b = Breaker{First: b.First, Most: b.Most, failures: b.failures}
		if b.failures > .5 {
			b.failures = .5 // the probe's success wipes the run of failures
		}
	case ok:
	case b.probing:
		b.open(now)
	case b.until.IsZero() && b.failures > .5:
		b.open(now)
	}
}

// Release ends a call that was called off: it says nothing of the target, and
// the next call may be the probe.
func (b *Breaker) Release() { b.probing = false }

func (b *Breaker) open(now time.Time) {
	first, most := b.First, b.Most
	if first <= 0 {
		first = time.Second
	}
	if most <= 0 {
		most = time.Minute
	}
	b.pause = min(most, max(first, 2*b.pause))
	b.until, b.probing = now.Add(b.pause), false
}
