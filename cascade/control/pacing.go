package control

import (
	"math"
	"time"
)

// HoursPerWeek is the length of the demand profile.
const HoursPerWeek = 7 * 24

// Pacer spreads what is left of a budget over the requests that are still
// expected, by a shadow price Lambda >= 0 on the cloud's cost: 0 while spending
// is below plan, rising while it is above. The dual step of online budget
// pacing (PORT, arXiv 2509.02718, with one constraint).
type Pacer struct {
	// Step is the size of a dual step; 0 counts as .05.
	Step   float64
	lambda float64
}

// Lambda is the current shadow price; it multiplies the cost as 1+Lambda.
func (p *Pacer) Lambda() float64 { return p.lambda }

// Restore continues from a shadow price.
func (p *Pacer) Restore(lambda float64) { p.lambda = math.Max(0, lambda) }

// Observe notes one request that cost spent when perRequest was its share of
// the budget (see Forecast.PerRequest), in one unit of money.
func (p *Pacer) Observe(spent, perRequest float64) {
	step := p.Step
	if step <= 0 {
		step = .05
	}
	excess := 16.0 // nothing is left
	if perRequest > 0 {
		excess = math.Min(excess, spent/perRequest-1)
	}
	p.lambda = math.Max(0, p.lambda+step*excess)
}

// Forecast expects requests by the hour of the week, from exponentially
// weighted counts of the same hour in earlier weeks.
type Forecast struct {
	mean [HoursPerWeek]float64
	seen [HoursPerWeek]bool
}

// HourOfWeek numbers the hour of t (UTC), 0 for the first hour of Sunday.
func HourOfWeek(t time.Time) int {
	t = t.UTC()
	return int(t.Weekday())*24 + t.Hour()
}

// Observe notes that an hour of the week is over and had count requests.
func (f *Forecast) Observe(hour int, count float64) {
	h := ((hour % HoursPerWeek) + HoursPerWeek) % HoursPerWeek
	if !f.seen[h] {
		f.mean[h], f.seen[h] = count, true
		return
	}
	f.mean[h] += .3 * (count - f.mean[h])
}

// Profile returns the mean of each hour of the week, -1 for hours never seen.
func (f *Forecast) Profile() []float64 {
	p := make([]float64, HoursPerWeek)
	for h := range p {
		p[h] = -1
		if f.seen[h] {
			p[h] = f.mean[h]
		}
	}
	return p
}

// Restore continues from a profile; one of another length is ignored.
func (f *Forecast) Restore(profile []float64) {
	if len(profile) != HoursPerWeek {
		return
	}
	for h, v := range profile {
		if f.seen[h] = v >= 0; f.seen[h] {
			f.mean[h] = v
		}
	}
}

// Expect sums the requests expected in the next n hours, starting with hour.
// Hours never seen count as the mean of those that were.
func (f *Forecast) Expect(hour, n int) float64 {
	sum, known := 0.0, 0.0
	for h, ok := range f.seen {
		if ok {
			sum += f.mean[h]
			known++
		}
	}
	fallback := 0.0
	if known > 0 {
		fallback = sum / known
	}
	total := 0.0
	for i := range n {
		h := (((hour + i) % HoursPerWeek) + HoursPerWeek) % HoursPerWeek
		if f.seen[h] {
			total += f.mean[h]
		} else {
			total += fallback
		}
	}
	return total
}

// PerRequest is the share of the remaining budget for the next request when n
// hours remain, starting with hour.
func (f *Forecast) PerRequest(remaining float64, hour, n int) float64 {
	return math.Max(0, remaining) / math.Max(1, f.Expect(hour, n))
}

// Bucket is a hard cap on spending: a token bucket in nano-dollars. The worst
// case is reserved before a call and settled after it. Times are the caller's.
type Bucket struct {
	rate     float64 // nano-dollars per second
	capacity int64
	level    int64
	carry    float64
	last     time.Time
}

// NewBucket returns a full bucket of this capacity (nano-dollars) that refills
// at rate nano-dollars per second.
func NewBucket(rate float64, capacity int64, now time.Time) *Bucket {
	return &Bucket{rate: rate, capacity: capacity, level: capacity, last: now}
}

// Reserve takes amount if it is there and reports whether it was.
func (b *Bucket) Reserve(now time.Time, amount int64) bool {
	b.refill(now)
	if amount < 0 || amount > b.level {
		return false
	}
	b.level -= amount
	return true
}

// Settle returns the difference of a reservation and the true cost, which may
// be negative: the level may then fall below zero until it refills.
func (b *Bucket) Settle(now time.Time, reserved, spent int64) {
	b.refill(now)
	b.level = min(b.capacity, b.level+reserved-spent)
}

// Level is what may be reserved now, nano-dollars.
func (b *Bucket) Level(now time.Time) int64 {
	b.refill(now)
	return b.level
}

func (b *Bucket) refill(now time.Time) {
	d := now.Sub(b.last)
	if d <= 0 {
		return
	}
	b.last = now
	// A week is more than any bucket needs to fill; the bound keeps the sum
	// far from overflow.
	add := b.rate*math.Min(d.Seconds(), 7*24*3600) + b.carry
	whole := math.Floor(math.Min(add, float64(b.capacity-b.level)))
	b.carry = math.Min(1, math.Max(0, add-whole))
	b.level = min(b.capacity, b.level+int64(whole))
}
