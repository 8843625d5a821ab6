package quota

// perUnit is what one request or token weighs in a bucket: a bucket that
// refills max units per minute gains max per microsecond, all in integers, so
// that nothing drifts.
const perUnit = 60_000_000

// maxDebt keeps levels far from overflow: MaxRate*perUnit is 6e18.
const maxDebt = 3_000_000_000_000_000_000

// shareMicros is how often shares of a rate are expected to be refreshed.
const shareMicros = 1_000_000

// bucket is a token bucket. Times are Unix microseconds.
type bucket struct {
	max, burst int64 // this gateway's share: units per minute, units
	level      int64 // in 1/perUnit of a unit; negative is debt
	at         int64 // when level was right
}

func newBucket(max, burst, now int64) bucket {
	return bucket{max: max, burst: burst, level: burst * perUnit, at: now}
}

// advance refills up to now. A clock that goes back refills nothing.
func (b *bucket) advance(now int64) {
	if now <= b.at {
		return
	}
	room := b.burst*perUnit - b.level
	elapsed := now - b.at
	b.at = now
	if b.max > 0 && elapsed > room/b.max {
		b.level += max(room, 0)
		return
	}
	b.level += elapsed * b.max
}

// wait returns the microseconds until n units may be taken, 0 for now. Where n
// is over this gateway's share of the limit's burst it is lent when the bucket
// is full, and the debt is paid afterwards. ok is false if it can never be.
func (b *bucket) wait(n int64, l *Limit) (us int64, ok bool) {
	need := min(n, b.burst) * perUnit
	switch {
	case n == 0:
		return 0, true
	case n > l.burst() || l.Max == 0:
		return 0, false
	case b.max == 0:
		return shareMicros, true // no share yet: ask again after the next refresh
	case b.level >= need:
		return 0, true
	}
	return ceilDiv(need-b.level, b.max), true
}

// take moves n units out, or back in where n is negative; never above full.
func (b *bucket) take(n int64) {
	b.level = max(min(b.level-n*perUnit, b.burst*perUnit), -maxDebt)
}

// resize changes the share. Lowered capacity cuts the level; raised capacity
// must be earned, or moving a share to and fro would mint tokens.
func (b *bucket) resize(max, burst, now int64) {
	b.advance(now)
	b.max, b.burst = max, burst
	b.level = min(b.level, burst*perUnit)
}

// remaining returns the whole units that may be taken now.
func (b *bucket) remaining() int64 { return max(floorDiv(b.level, perUnit), 0) }

// refill returns the microseconds until the bucket is full.
func (b *bucket) refill() int64 {
	missing := b.burst*perUnit - b.level
	if missing <= 0 || b.max == 0 {
		return 0
	}
	return ceilDiv(missing, b.max)
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
