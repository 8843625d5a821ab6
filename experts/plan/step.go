package plan

// step takes the change with most excess removed per transfer.
func (m *migration) step(k int) bool {
	var best change
	if m.exactly {
		best = m.relieve(k)
	} else {
		best = m.bestOverwrite(k)
	}
	if swap := m.bestExchange(k, max(best.worth()*best.jitter, m.target*minGain)); swap.gain > 0 {
		m.used += swap.cost
		m.swap(swap.p, swap.q)
		m.touch(m.dev[swap.p])
		m.touch(m.dev[swap.q])
		return true
	}
	if best.gain <= 0 && m.used < k && !m.exactly {
		best = m.relieve(k)
	}
	if best.gain <= 0 {
		return m.chain(k)
	}
	m.used += best.cost
	a := m.slot[best.p]
	m.overwrite(best.p, best.e)
	if m.cnt[best.e] == 2 {
		m.multi = append(m.multi, best.e)
	}
	m.touchHolders(a)
	m.touchHolders(best.e)
	return true
}

// change is an overwrite of slot p by expert e, or a swap of slots p and q.
type change struct {
	p, q, e int32
	cost    int
	gain    float64
	jitter  float64 // see migration.jitter
}

// worth ranks changes. One that costs nothing counts as half a transfer.
func (c change) worth() float64 {
	switch {
	case c.gain <= 0:
		return 0
	case c.cost <= 0:
		return 2 * c.gain
	}
	return c.gain / float64(c.cost)
}

func excess(time, target float64) float64 { return max(0, time-target) }

// aim sets the target and judges every expert against it.
func (m *migration) aim(target float64) {
	m.target = target
	m.multi = m.multi[:0]
	for e, c := range m.cnt {
		m.judge(int32(e))
		if c > 1 {
			m.multi = append(m.multi, int32(e))
		}
	}
}

// findLight finds the experts whose further replica would weigh least: what a
// device above target takes best for a surplus replica that it gives up.
func (m *migration) findLight() {
	m.light = m.light[:0]
	weight := func(e int32) float64 { return m.load[e] / float64(m.cnt[e]+1) }
	for e := range m.cnt {
		e := int32(e)
		if len(m.light) == lightCap && weight(e) >= weight(m.light[lightCap-1]) {
			continue
		}
		if len(m.light) < lightCap {
			m.light = append(m.light, e)
		}
		i := len(m.light) - 1
		for ; i > 0 && weight(m.light[i-1]) > weight(e); i-- {
			m.light[i] = m.light[i-1]
		}
		m.light[i] = e
	}
}

// lightCap is the length of light.
const lightCap = 8

// touchHolders judges anew what shares a device with expert e.
func (m *migration) touchHolders(e int32) {
	m.judge(e)
	for s := m.head[e]; s >= 0; s = m.next[s] {
		m.touch(m.dev[s])
	}
}

// touch judges anew the experts of a device whose time has changed.
func (m *migration) touch(d int32) {
	for s := m.first[d]; s < m.first[d+1]; s++ {
		m.judge(m.slot[s])
	}
}

// judge updates what one replica of e more would gain and one fewer would risk.
func (m *migration) judge(e int32) {
	c := float64(m.cnt[e])
	drop := m.share[e] - m.load[e]/(c+1)
	rise := 0.0
	if c > 1 {
		rise = m.load[e]/(c-1) - m.share[e]
	}
	gain, risk := 0.0, 0.0
	for s := m.head[e]; s >= 0; s = m.next[s] {
		d := m.dev[s]
		x := m.time[d] - m.target
		if x > 0 {
			gain += min(x, drop*m.inv[d])
			risk += rise * m.inv[d]
		} else {
			risk += max(0, x+rise*m.inv[d])
		}
	}
	m.gain[e], m.risk[e], m.rise[e] = gain, risk, rise
}

// bestOverwrite looks at every surplus slot and the experts whose extra
// replica would relieve devices above target most.
func (m *migration) bestOverwrite(k int) change {
	most := 0.0
	for _, g := range m.gain {
		if g > most {
			most = g
		}
	}
	best := m.pair(k, most, max(most/2, m.target*minGain))
	if best.gain <= 0 {
		best = m.pair(k, most, m.target*minGain)
	}
	return best
}

// pairExact improves on best by one more replica of e. It is pair without its
// estimate: what an expert's holders win and what another's lose is added up
// per device before it is judged.
func (m *migration) pairExact(k int, e int32, best change) change {
	bestWorth := max(best.worth()*best.jitter, m.target*minGain)
	for _, a := range m.multi {
		if m.cnt[a] < 2 || a == e {
			continue
		}
		for s := m.head[a]; s >= 0; s = m.next[s] {
			if m.holds(m.dev[s], e) {
				continue
			}
			m.work -= int(m.cnt[a] + m.cnt[e])
			c := change{p: s, e: e, gain: m.exact(s, e), cost: m.price(m.dev[s], e) - m.price(m.dev[s], a)}
			c.jitter = m.jitter[e] * m.jitter[a]
			if w := c.worth() * c.jitter; w > bestWorth && m.used+c.cost <= k {
				best, bestWorth = c, w
			}
		}
	}
	return best
}

// relieve judges the experts of the hottest device exactly: the last resort,
// and the first in rounds that vary.
func (m *migration) relieve(k int) change {
	var best change
	h := m.hottest()
	for s := m.first[h]; s < m.first[h+1]; s++ {
		best = m.pairExact(k, m.slot[s], best)
	}
	return best
}

// exact is the excess that overwriting slot s by e removes.
func (m *migration) exact(s, e int32) float64 {
	d, a := m.dev[s], m.slot[s]
	share := m.load[e] / float64(m.cnt[e]+1)
	drop := m.share[e] - share
	x := m.time[d] - m.target
	sum := excess(x, 0) - excess(x+(share-m.share[a])*m.inv[d], 0)
	for h := m.head[e]; h >= 0; h = m.next[h] {
		o := m.dev[h]
		by := drop
		if m.holds(o, a) {
			by -= m.rise[a]
		}
		x := m.time[o] - m.target
		sum += excess(x, 0) - excess(x-by*m.inv[o], 0)
	}
	for h := m.head[a]; h >= 0; h = m.next[h] {
		if o := m.dev[h]; o != d && !m.holds(o, e) {
			x := m.time[o] - m.target
			sum += excess(x, 0) - excess(x+m.rise[a]*m.inv[o], 0)
		}
	}
	return sum
}

// pair is the best combination of a surplus slot and an expert with a gain
// between least and most. It adds up gain and risk as if no device held both
// experts, which is never too high.
func (m *migration) pair(k int, most, least float64) change {
	m.hot = m.hot[:0]
	for e, g := range m.gain {
		if g >= least {
			m.hot = append(m.hot, relief{int32(e), g, m.load[e] / float64(m.cnt[e]+1)})
		}
	}
	m.warm = len(m.hot)
	for _, e := range m.light {
		if m.gain[e] < least {
			m.hot = append(m.hot, relief{e, m.gain[e], m.load[e] / float64(m.cnt[e]+1)})
		}
	}
	var best change
	for _, a := range m.multi {
		if m.cnt[a] < 2 {
			continue
		}
		m.work -= int(m.cnt[a]) * 4
		for s := m.head[a]; s >= 0; s = m.next[s] {
			best = m.pairSlot(k, s, most, best)
		}
	}
	return best
}

// pairSlot improves on best by overwriting slot s.
func (m *migration) pairSlot(k int, s int32, most float64, best change) change {
	d, a := m.dev[s], m.slot[s]
	inv, over := m.inv[d], m.time[d]-m.target
	own := excess(over+m.rise[a]*inv, 0) - excess(over, 0)
	before := excess(over, 0) - (m.risk[a] - own)
	room := m.share[a]*inv - over
	back := m.price(d, a)
	bestWorth := max(best.worth()*best.jitter, m.target*minGain)
	floor := bestWorth - before // a change that gains less than it is not better
	if back == 1 {
		floor = bestWorth/2 - before
	}
	if most <= floor {
		return best
	}
	m.work -= m.warm
	if over > 0 {
		m.work -= len(m.hot) - m.warm
	}
	for i, r := range m.hot {
		if i == m.warm && over <= 0 {
			break // a light expert relieves only the device of the slot
		}
		if r.gain <= floor {
			continue
		}
		gain := r.gain + before - max(0, r.share*inv-room)
		if gain <= 0 || m.holds(d, r.expert) {
			continue
		}
		c := change{p: s, e: r.expert, gain: gain, cost: m.price(d, r.expert) - back}
		c.jitter = m.jitter[r.expert] * m.jitter[a]
		if w := c.worth() * c.jitter; w > bestWorth && m.used+c.cost <= k {
			best, bestWorth = c, w
		}
	}
	return best
}

// bestExchange looks for a swap between the hottest device and another that is
// worth more than bestWorth; its gain is 0 when there is none.
func (m *migration) bestExchange(k int, bestWorth float64) change {
	h := m.hottest()
	var best change
	if m.used >= k || k-m.used < 2 && bestWorth > m.target*minGain {
		return best // a swap that costs less than two is rare
	}
	hot, ih := m.time[h], m.inv[h]
	over := hot - m.target
	for d := range m.time {
		room := m.target - m.time[d]
		// A swap is two transfers, and neither device can win more than this.
		if m.inv[d] == 0 || room <= 0 || min(over, room/m.inv[d]*ih) <= 2*bestWorth {
			continue
		}
		m.work -= int((m.first[h+1] - m.first[h]) * (m.first[d+1] - m.first[d]))
		for p := m.first[h]; p < m.first[h+1]; p++ {
			a := m.slot[p]
			sa := m.share[a]
			for q := m.first[d]; q < m.first[d+1]; q++ {
				b := m.slot[q]
				diff := sa - m.share[b]
				gain := min(over, diff*ih) - max(0, diff*m.inv[d]-room)
				if gain <= bestWorth || m.holds(h, b) || m.holds(int32(d), a) {
					continue
				}
				c := change{p: p, q: q, gain: gain, cost: m.exchangePrice(p, q)}
				if w := c.worth() * m.jitter[a]; w > bestWorth && m.used+c.cost <= k {
					c.jitter = m.jitter[a]
					best, bestWorth = c, w
				}
			}
		}
	}
	return best
}

func (m *migration) exchangePrice(p, q int32) int {
	a, b, h, d := m.slot[p], m.slot[q], m.dev[p], m.dev[q]
	return m.price(h, b) + m.price(d, a) - m.price(h, a) - m.price(d, b)
}
