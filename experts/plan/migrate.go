package plan

import "slices"

// Bounded migration: the lowest top within K transfers from an old placement.
// A greedy step on the hottest device alone is short-sighted, because one
// extra replica of a hot expert relieves every device that holds it. So for a
// target T the search removes excess, the sum over devices of time above T,
// by the step with most excess removed per transfer; bisection finds the
// lowest T that K transfers can reach.

// migration is a table that counts transfers against the old placement.
type migration struct {
	*table
	had  []uint64 // bitset [device][expert] of the old placement
	used int      // transfers so far

	ratio  float64 // how near to the goal the layer before came, 0 at best
	target float64
	multi  []int32   // experts with surplus slots
	gain   []float64 // excess that one more replica would remove, per expert
	risk   []float64 // excess that one replica fewer would add at its holders
	rise   []float64 // what each replica carries more with one fewer
	hot    []relief
	warm   int       // entries of hot that relieve other devices
	light  []int32   // experts whose further replica would weigh least
	jitter []float64 // factor on the worth of changes for an expert, at most 1

	exactly bool // no estimates, see relieve
}

// relief is what one more replica of an expert would do.
type relief struct {
	expert int32
	gain   float64 // excess that its holders would lose
	share  float64 // its share afterwards
}

func (m *migration) hadBefore(d, e int32) bool {
	return m.had[int(d)*m.words+int(e)>>6]>>(uint(e)&63)&1 != 0
}

// price is 1 where e on d has to be transferred, else 0.
func (m *migration) price(d, e int32) int {
	if m.hadBefore(d, e) {
		return 0
	}
	return 1
}

// newMigrator makes a migration on t, to be started for each layer.
func newMigrator(t *table) *migration {
	n := len(t.cnt)
	return &migration{table: t, had: make([]uint64, len(t.has)), jitter: make([]float64, n),
		gain: make([]float64, n), risk: make([]float64, n), rise: make([]float64, n)}
}

// start seats what the old placement still has on the fleet's devices in the
// empty table, then fills what is left: lost experts first, then the replicas
// that weigh most. It fails with ErrMoves when k is too small to seat every
// expert.
func (m *migration) start(old [][]int32, k int) error {
	m.used = 0
	clear(m.had)
	for d := range m.time {
		if d >= len(old) {
			break
		}
		for _, e := range old[d] {
			m.had[d*m.words+int(e)>>6] |= 1 << (uint(e) & 63)
		}
	}
	m.seatOld(old)
	if err := m.seatLost(k); err != nil {
		return err
	}
	m.fillEmpty()
	return nil
}

// seatOld keeps old slots. A device that lost slots drops the experts that
// have most replicas elsewhere; a second copy on one device is dropped too.
func (m *migration) seatOld(old [][]int32) {
	fits := true
	for d, list := range old {
		fits = fits && d < m.devices() && len(list) <= int(m.first[d+1]-m.first[d])
	}
	if !fits {
		old = m.trim(old)
	}
	for _, list := range old {
		for i, e := range list {
			if !slices.Contains(list[:i], e) {
				m.cnt[e]++
			}
		}
	}
	for e, c := range m.cnt {
		if c > 0 {
			m.share[e] = m.load[e] / float64(c)
		}
	}
	for d, list := range old {
		s := m.first[d]
		for _, e := range list {
			if !m.holds(int32(d), e) {
				m.seat(s, e)
				s++
			}
		}
	}
}

// trim drops what has no slot on the fleet any more.
func (m *migration) trim(old [][]int32) [][]int32 {
	total := make([]int, len(m.cnt))
	lists := make([][]int32, m.devices())
	for d := range lists {
		if d < len(old) && m.first[d+1] > m.first[d] {
			lists[d] = slices.Clone(old[d])
			slices.Sort(lists[d])
			lists[d] = slices.Compact(lists[d])
			for _, e := range lists[d] {
				total[e]++
			}
		}
	}
	for d, list := range lists {
		for len(list) > int(m.first[d+1]-m.first[d]) {
			drop := 0
			for i, e := range list {
				if total[e] > total[list[drop]] {
					drop = i
				}
			}
			total[list[drop]]--
			list = slices.Delete(list, drop, drop+1)
		}
		lists[d] = list
	}
	return lists
}

// seatLost gives every expert without a slot one: an empty slot, or that of
// the lightest surplus replica, on the device where time stays lowest.
func (m *migration) seatLost(k int) error {
	lost := make([]float64, len(m.cnt))
	for e, c := range m.cnt {
		lost[e] = -1
		if c == 0 {
			lost[e] = m.load[e]
		}
	}
	for _, e := range descending(lost) {
		if lost[e] < 0 {
			break
		}
		best, bestTime := int32(-1), 0.0
		for s, a := range m.slot {
			d := m.dev[s]
			x := m.time[d] + m.load[e]*m.inv[d]
			if a >= 0 {
				if m.cnt[a] < 2 {
					continue
				}
				x = (x - m.share[a]*m.inv[d]) * (1 + 1e-9) // an empty slot is better
			}
			if best < 0 || x < bestTime {
				best, bestTime = int32(s), x
			}
		}
		if best < 0 {
			return ErrFleet
		}
		if m.used += m.price(m.dev[best], int32(e)); m.used > k {
			return ErrMoves
		}
		if m.slot[best] >= 0 {
			m.take(best)
		}
		m.put(best, int32(e))
	}
	return nil
}

// fillEmpty puts a replica into every slot that is still empty: one that costs
// no transfer where there is any, else the heaviest that fits. The invariant
// that all slots are filled goes before the budget.
func (m *migration) fillEmpty() {
	for s, a := range m.slot {
		if a >= 0 {
			continue
		}
		d, best := m.dev[s], int32(-1)
		for e := range m.cnt {
			e := int32(e)
			if m.holds(d, e) {
				continue
			}
			if best < 0 || m.price(d, e) < m.price(d, best) ||
				m.price(d, e) == m.price(d, best) && m.share[e] > m.share[best] {
				best = e
			}
		}
		m.used += m.price(d, best)
		m.put(int32(s), best)
	}
}

// migrate lowers the top within k transfers, not below enough. A round that
// aims too low wastes transfers on devices that stay hot, one that aims too
// high leaves some unused; rounds bisect between. The first aims at the share
// of the way that the layer before came, as layers of a model are alike. Work
// that is left then goes into rounds that prefer some experts at random, which
// leads out of a greedy first step that blocks the next.
func (m *migration) migrate(k int, enough float64) {
	m.prefer(nil)
	m.exactly = false
	b := m.begin(enough)
	target := b.low + (b.high-b.low)*m.ratio
	for round := range maxRounds {
		done := b.round(m, target, k, enough)
		switch {
		case done:
			b.high = min(b.high, target)
		case round > 0 || m.ratio > 0:
			b.low = max(b.low, target)
		}
		target = b.low + (b.high-b.low)*0.6
		if b.high <= b.low*(1+1e-3) || m.work <= 0 {
			break
		}
	}
	rnd := sequence(uint64(len(m.slot))<<32 | uint64(len(m.cnt)))
	for i := range jitterRounds {
		if m.work <= 0 || b.top <= enough || k == 0 {
			break
		}
		m.prefer(&rnd)
		m.exactly = i%2 == 0 && m.devices() <= chainDevices // estimates pass some steps over
		b.round(m, max(enough, b.top*0.97), k, enough)
	}
	m.copyFrom(b.best)
	m.used = b.bestUsed
	if b.from > enough {
		m.ratio = 0.95 * max(0, b.top-enough) / (b.from - enough)
	}
}

// Rounds of a migration; work usually ends it earlier.
const (
	maxRounds    = 12
	jitterRounds = 64
)

// prefer draws how much changes for each expert count; without chance all
// count in full.
func (m *migration) prefer(rnd *sequence) {
	for e := range m.jitter {
		m.jitter[e] = 1
		if rnd != nil {
			m.jitter[e] = 1 - float64(rnd.below(1<<20))/(1<<21)
		}
	}
}

// rounds is the state of migrate between rounds.
type rounds struct {
	start, best         *table
	startUsed, bestUsed int
	from, top           float64 // at the start, and the lowest so far
	low, high           float64 // targets known to fail and to be reached
	moved               bool
}

func (m *migration) begin(enough float64) *rounds {
	start := m.spare(0)
	start.copyFrom(m.table)
	top := m.top()
	return &rounds{start: start, best: start, startUsed: m.used, bestUsed: m.used, from: top, top: top, low: enough, high: top}
}

// round starts over, aims at target, and keeps what is best. It reports
// whether the target was reached.
func (b *rounds) round(m *migration, target float64, k int, enough float64) bool {
	if b.moved {
		m.copyFrom(b.start)
		m.used = b.startUsed
	}
	b.moved = true
	m.findLight()
	done := m.reach(target, k)
	if m.used < k {
		m.improve(k, enough)
	}
	if now := m.top(); now < b.top {
		b.best = m.spare(1)
		b.best.copyFrom(m.table)
		b.top, b.bestUsed = now, m.used
		b.high = min(b.high, now)
	}
	return done
}

// minGain is the part of the target below which a gain is rounding noise.
const minGain = 1e-9

// reach takes steps until no device is above target; it reports whether that
// was possible within k transfers.
func (m *migration) reach(target float64, k int) bool {
	m.aim(target)
	for m.work > 0 && m.top() > target*(1+1e-12) {
		if !m.step(k) {
			return false
		}
	}
	return m.top() <= target*(1+1e-12)
}

// improve spends what is left of the budget on the hottest device, target or
// not: a target just below the top makes every step lower the top itself.
func (m *migration) improve(k int, enough float64) {
	for m.work > 0 && m.top() > enough {
		top := m.top()
		m.aim(max(enough, top*(1-2e-3)))
		if !m.step(k) || m.top() >= top*(1-1e-9) {
			return
		}
	}
}
