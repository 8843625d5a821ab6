package quota

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// model is a token bucket in exact fractions.
type model struct {
	level *big.Rat // units
	at    int64
}

func (m *model) advance(b *bucket, now int64) {
	if now <= m.at {
		return
	}
	gain := big.NewRat((now-m.at)*b.max, perUnit)
	m.level.Add(m.level, gain)
	m.cap(b)
	m.at = now
}

func (m *model) cap(b *bucket) {
	if full := big.NewRat(b.burst, 1); m.level.Cmp(full) > 0 {
		m.level.Set(full)
	}
}

func TestBucketEqualsExactModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limit{Max: rapid.Int64Range(1, 1_000_000).Draw(t, "max")}
		l.Burst = rapid.Int64Range(1, 2_000_000).Draw(t, "burst")
		now := int64(1_700_000_000_000_000)
		b := newBucket(l.Max, l.Burst, now)
		m := model{big.NewRat(l.Burst, 1), now}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(-1000, 30_000_000).Draw(t, "us")
			b.advance(now)
			m.advance(&b, now)
			n := rapid.Int64Range(0, l.Burst).Draw(t, "n")
			us, ok := b.wait(n, &l)
			may := n == 0 || m.level.Cmp(big.NewRat(n, 1)) >= 0
			if !ok || may != (us == 0) {
				t.Fatalf("wait(%d) = %d, %v with level %s", n, us, ok, m.level)
			}
			if us == 0 {
				b.take(n)
				m.level.Sub(m.level, big.NewRat(n, 1))
				continue
			}
			checkWaitIsExact(t, b, &l, n, us)
		}
	})
}

// checkWaitIsExact: refused one microsecond before, admitted at the time told.
func checkWaitIsExact(t *rapid.T, b bucket, l *Limit, n, us int64) {
	early := b
	early.advance(b.at + us - 1)
	if left, _ := early.wait(n, l); left != 1 {
		t.Fatalf("one microsecond before the told wait of %d another %d remain", us, left)
	}
	b.advance(b.at + us)
	if left, _ := b.wait(n, l); left != 0 {
		t.Fatalf("after the told wait of %d another %d remain", us, left)
	}
}

func TestBucketEdges(t *testing.T) {
	l := Limit{Max: 60, Burst: 60}
	b := newBucket(20, 20, 0) // a third of the rate is ours
	if us, ok := b.wait(30, &l); us != 0 || !ok {
		t.Errorf("more than our share, less than the burst, bucket full: wait %d, %v", us, ok)
	}
	b.take(30)
	if b.remaining() != 0 || b.refill() != 30*perUnit/20 {
		t.Errorf("after lending: remaining %d, refill %d", b.remaining(), b.refill())
	}
	if _, ok := b.wait(61, &l); ok {
		t.Error("more than the burst was not refused for good")
	}
	b.resize(0, 0, 0)
	if us, ok := b.wait(1, &l); us != shareMicros || !ok {
		t.Errorf("without a share: wait %d, %v", us, ok)
	}
	none := newBucket(0, 0, 0)
	if _, ok := none.wait(1, &Limit{}); ok {
		t.Error("a limit of 0 admits")
	}
	huge := newBucket(MaxRate, MaxRate, 0)
	for range 10 {
		huge.take(MaxRate)
	}
	if huge.level >= 0 {
		t.Errorf("debt overflowed to %d", huge.level)
	}
	huge.advance(1 << 60)
	if huge.remaining() != MaxRate {
		t.Errorf("a full bucket holds %d", huge.remaining())
	}
}

func TestRaisedShareMustBeEarned(t *testing.T) {
	b := newBucket(60, 60, 0)
	b.take(60)
	for range 100 {
		b.resize(30, 30, 0)
		b.resize(60, 60, 0)
	}
	if b.remaining() != 0 {
		t.Errorf("moving a share to and fro minted %d units", b.remaining())
	}
}
