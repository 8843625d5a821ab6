package fairsim

// gaps finds the largest difference in service of two clients over any
// interval in which both had something waiting.
type gaps struct {
	n        int
	since    []int // how often the client has begun to wait; negative: idle
	active   []int
	together [][2]int // since of both when the pair's interval began
	low, hi  []float64
	worst    float64
}

func newGaps(n int) *gaps {
	return &gaps{n: n, since: make([]int, n), together: make([][2]int, n*n), low: make([]float64, n*n), hi: make([]float64, n*n)}
}

func (g *gaps) observe(service []float64, waiting []int) {
	g.active = g.active[:0]
	for c, n := range waiting {
		switch {
		case n > 0:
			g.since[c] = max(g.since[c], -g.since[c]+1)
			g.active = append(g.active, c)
		case g.since[c] > 0:
			g.since[c] = -g.since[c]
		}
	}
	for k, a := range g.active {
		for _, b := range g.active[:k] {
			i, d := a*g.n+b, service[a]-service[b]
			if now := [2]int{g.since[a], g.since[b]}; g.together[i] != now {
				g.together[i], g.low[i], g.hi[i] = now, d, d
			}
			g.low[i], g.hi[i] = min(g.low[i], d), max(g.hi[i], d)
			g.worst = max(g.worst, g.hi[i]-g.low[i])
		}
	}
}
