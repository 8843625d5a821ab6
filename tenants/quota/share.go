package quota

import "time"

// Split divides a rate or a number of slots between gateways by what each was
// asked for lately. A tenth is divided evenly, so that a gateway whose first
// request arrives is not at zero; the rest follows demand. The parts sum to
// total exactly, by largest remainder with ties to the lower index.
func Split(total int64, demand []int64) []int64 {
	n := int64(len(demand))
	if n == 0 {
		return nil
	}
	weights := make([]float64, n)
	var sum float64
	for _, d := range demand {
		sum += float64(max(d, 0))
	}
	for i, d := range demand {
		weights[i] = 1 / float64(n)
		if sum > 0 {
			weights[i] = 0.1/float64(n) + 0.9*float64(max(d, 0))/sum
		}
	}
	return apportion(total, weights)
}

func apportion(total int64, weights []float64) []int64 {
	parts := make([]int64, len(weights))
	rest := make([]float64, len(weights))
	left := total
	for i, w := range weights {
		exact := float64(total) * w
		parts[i] = min(int64(exact), left) // rounding must not overdraw
		rest[i] = exact - float64(parts[i])
		left -= parts[i]
	}
	for ; left > 0; left-- {
		best := 0
		for i := range rest {
			if rest[i] > rest[best] {
				best = i
			}
		}
		parts[best]++
		rest[best]--
	}
	return parts
}

// Demand is what was asked of a shared limit since the last call of Demands.
type Demand struct {
	LimitID string
	Key     string
	Asked   int64 // in the limit's unit, refused requests included
}

// Demands appends to dst the demand for every rate and concurrency limit, and
// starts counting anew.
func (a *Account) Demands(dst []Demand) []Demand {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, s := range a.states {
		if s.limit.Window == Minute || s.limit.Window == AtOnce {
			dst = append(dst, Demand{k.limit, k.key, s.demand})
			s.demand = 0
		}
	}
	return dst
}

// Share is this gateway's part of a rate or of a number of slots.
type Share struct {
	LimitID string
	Key     string
	Max     int64
	Burst   int64 // rates only
}

// setPeers says how many gateways share rates and slots. A counter that is new
// here starts with an even part, at least 1, until the first share comes.
func (a *Account) setPeers(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peers = int64(n)
}

func (a *Account) part(n int64) int64 {
	if a.peers <= 1 || n == 0 {
		return n
	}
	return max(n/a.peers, 1)
}

// Shadowed adds to dst, by limit, the refusals that shadow limits have not made
// since the last call.
func (a *Account) Shadowed(dst map[string]int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, s := range a.states {
		if s.wouldHave > 0 {
			dst[k.limit] += s.wouldHave
			s.wouldHave = 0
		}
	}
}

// ApplyShare sets this gateway's part of a limit. A raised rate starts from
// the level it had. To keep the sum within the limit while shares move, lower
// ones are applied one refresh before the others are raised.
func (a *Account) ApplyShare(sh Share, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.states[stateKey{sh.LimitID, sh.Key}]
	if s == nil {
		return
	}
	switch s.limit.Window {
	case Minute:
		s.bucket.resize(min(sh.Max, s.limit.Max), min(sh.Burst, s.limit.burst()), now.UnixMicro())
	case AtOnce:
		s.share = min(sh.Max, s.limit.Max)
	}
}
