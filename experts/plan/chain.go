package plan

// chain makes room where there is none: an expert with a single slot goes to
// the surplus slot of another, and a hot expert takes its old slot. That is two
// transfers, of which the first alone wins nothing, so single steps miss it.
// It is tried last, and only on few devices, where surplus slots are rare.
func (m *migration) chain(k int) bool {
	if m.devices() > chainDevices || m.used+2 > k {
		return false
	}
	hot := m.hottestExperts()
	before := m.totalExcess()
	var bestQ, bestP, bestE int32
	best := m.target * minGain
	surplus := append([]int32(nil), m.multi...)
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
					if e == c || m.holds(m.dev[p], e) {
						continue
					}
					m.work -= m.devices() + 8
					m.overwrite(p, e)
					if gain := (before - m.totalExcess()) * m.jitter[e]; gain > best*(1+1e-9) {
						best, bestQ, bestP, bestE = gain, q, p, e
					}
					m.overwrite(p, c)
				}
				m.overwrite(q, a)
			}
		}
	}
	if best <= m.target*minGain {
		return false
	}
	c := m.slot[bestP]
	m.apply(bestQ, c)
	m.apply(bestP, bestE)
	m.aim(m.target)
	return true
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
