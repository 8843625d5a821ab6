package route

import "time"

// Class names requests whose prompts begin alike.
type Class [16]byte

// ClassView is what is known of a request's class. The zero value is of a request
// that begins like no other.
type ClassView struct {
	Count  int     // arrivals in the window, this one included
	Share  float64 // of all arrivals in the window
	Streak int     // arrivals in a row that the holders of the prefix kept while it was hot
}

// Heat is what a decision did with a hot class.
type Heat string

// Values of Heat; "" is of a class that is not hot, or that the scores spread
// by themselves.
const (
	HeatKept   Heat = "kept"   // the scores kept it at its holders
	HeatSpread Heat = "spread" // it went to an instance that did not hold it
)

const (
	hotWindow   = time.Minute
	hotCount    = 5       // arrivals in the window below which a class is never hot
	maxArrivals = 1 << 14 // remembered; beyond it the window is shorter
)

// Traffic counts the classes of a pool's arrivals. It is the state of LMetric's
// detector of hot classes (arXiv 2603.15202, 5.2): whoever asks a policy keeps
// one for each pool, tells it each arrival and then the decision. The zero value
// is ready.
type Traffic struct {
	arrivals []arrival // by time
	counts   map[Class]int
	streaks  map[Class]int
}

type arrival struct {
	at    time.Duration
	class Class
}

// Arrive counts an arrival at now and returns what is known of its class.
func (t *Traffic) Arrive(now time.Duration, c Class) ClassView {
	if t.counts == nil {
		t.counts, t.streaks = map[Class]int{}, map[Class]int{}
	}
	for len(t.arrivals) == maxArrivals || len(t.arrivals) > 0 && now-t.arrivals[0].at > hotWindow {
		t.forget()
	}
	t.arrivals = append(t.arrivals, arrival{now, c})
	t.counts[c]++
	return ClassView{Count: t.counts[c], Share: float64(t.counts[c]) / float64(len(t.arrivals)), Streak: t.streaks[c]}
}

func (t *Traffic) forget() {
	c := t.arrivals[0].class
	t.arrivals = t.arrivals[1:]
	if t.counts[c]--; t.counts[c] == 0 {
		delete(t.counts, c)
		delete(t.streaks, c)
	}
}

// Learn takes what was decided for an arrival of c. Each further copy of the
// prefix has to be earned by another streak: the new holder has yet to report it.
func (t *Traffic) Learn(c Class, d *Decision) {
	if d.Heat == HeatKept {
		t.streaks[c]++
	} else {
		delete(t.streaks, c)
	}
}

// hot reports whether holders of n instances hold a prefix that is asked for by
// more than their share of the arrivals: the product cannot balance that, because
// what is cached weighs too little.
func (v *ClassView) hot(holders, n int) bool {
	return holders > 0 && holders < n && v.Count >= hotCount && v.Share > float64(holders)/float64(n)
}

// hottest chooses for a hot class: the product over all instances, or, when that
// has stayed with the holders for twice as many arrivals as there are of them,
// one that does not hold the prefix, which is thereby computed there too.
func (m *Measured) hottest(o *Observation, d *Decision, stage Stage, list, holders []*InstanceView) *InstanceView {
	if o.Req.Class.Streak < 2*len(holders) {
		best := m.product(o, d, stage, list)
		if m.holds(o, best) {
			d.Heat = HeatKept
		}
		return best
	}
	d.Heat = HeatSpread
	d.Reasons = append(d.Reasons, ReasonHotSpread)
	cold := prefer(d, stage, list, OutHot, func(in *InstanceView) bool { return !m.holds(o, in) })
	return m.product(o, d, stage, cold)
}
