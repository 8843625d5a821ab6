package plan

// double is two transfers of which the first alone wins nothing, so that
// single steps miss them: slot q gets first, then slot p gets second.
type double struct {
	q, first, p, second int32
	gain                float64
}

// chain takes the best double. It is tried last, and only on few devices,
// where surplus slots are rare.
func (m *migration) chain(k int) bool {
	if m.devices() > chainDevices || m.used+2 > k {
		return false
	}
	least := m.target * minGain
	best := double{gain: least}
	surplus := append([]int32(nil), m.multi...)
	hot := m.hottestExperts()
	m.relocate(surplus, hot, &best)
	m.trade(surplus, hot, &best)
	if best.gain <= least {
		return false
	}
	m.apply(best.q, best.first)
	m.apply(best.p, best.second)
	m.aim(m.target)
	return true
}

// relocate makes room where there is none: an expert with a single slot goes
// to the surplus slot of another, and a hot expert takes its old slot.
func (m *migration) relocate(surplus, hot []int32, best *double) {
	before := m.totalExcess()
	for _, a := range surplus {
		if m.cnt[a] < 2 {
			continue
		}
		for _, q := range m.slotsOf(a) {
			for p := range m.slot {
				p := int32(p)
				c := m.slot[p]
				if m.cnt[c] != 1 || m.dev[p] == m.dev[q] || m.holds(m.dev[q], c) || m.work <= 0 {
					continue
				}
				m.overwrite(q, c)
				for _, e := range hot {
					m.second(q, p, e, before, best)
				}
				m.overwrite(q, a)
			}
		}
	}
}

// trade shares in both directions: a device takes a replica of a hot expert
// for a surplus slot of its own, and gives the hottest device a replica of one
// of its experts for a surplus slot there.
func (m *migration) trade(surplus, hot []int32, best *double) {
	before, h := m.totalExcess(), m.hottest()
	for _, a := range surplus {
		if m.cnt[a] < 2 {
			continue
		}
		for _, q := range m.slotsOf(a) {
			d := m.dev[q]
			for _, e := range hot {
				if d == h || m.holds(d, e) || m.work <= 0 {
					continue
				}
				m.overwrite(q, e)
				for p := m.first[h]; p < m.first[h+1]; p++ {
					for s := m.first[d]; s < m.first[d+1] && m.cnt[m.slot[p]] > 1; s++ {
						m.second(q, p, m.slot[s], before, best)
					}
				}
				m.overwrite(q, a)
			}
		}
	}
}

// second tries e in slot p after q was overwritten, and leaves p as it was.
func (m *migration) second(q, p, e int32, before float64, best *double) {
	c := m.slot[p]
	if e == c || m.holds(m.dev[p], e) || m.work <= 0 {
		return
	}
	m.work -= m.devices() + 8
	m.overwrite(p, e)
	if gain := (before - m.totalExcess()) * m.jitter[e]; gain > best.gain*(1+1e-9) {
		*best = double{q: q, first: m.slot[q], p: p, second: e, gain: gain}
	}
	m.overwrite(p, c)
}

// chainDevices is the number of devices up to which chain is tried.
const chainDevices = 16

// apply overwrites and counts the transfer.
func (m *migration) apply(s, e int32) {
	m.used += m.price(m.dev[s], e) - m.price(m.dev[s], m.slot[s])
	m.overwrite(s, e)
}

// hottestExperts are the experts of the hottest device that weigh most, at
// most three.
func (m *migration) hottestExperts() []int32 {
	h := m.hottest()
	var out []int32
	for s := m.first[h]; s < m.first[h+1]; s++ {
		out = append(out, m.slot[s])
		for i := len(out) - 1; i > 0 && m.share[out[i]] > m.share[out[i-1]]; i-- {
			out[i], out[i-1] = out[i-1], out[i]
		}
		out = out[:min(3, len(out))]
	}
	return out
}

func (m *migration) slotsOf(e int32) []int32 {
	var out []int32
	for s := m.head[e]; s >= 0; s = m.next[s] {
		out = append(out, s)
	}
	return out
}

// totalExcess is what devices have above the target.
func (m *migration) totalExcess() float64 {
	sum := 0.0
	for _, x := range m.time {
		sum += excess(x, m.target)
	}
	return sum
}
