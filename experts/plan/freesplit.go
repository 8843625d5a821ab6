package plan

// FreeSplit is the lowest highest device time that any split of tokens over
// the replicas of a placement reaches in one layer: what replica choice per
// batch (LPLB, SGLang's LP dispatch) could win over the even split. By min-cut
// duality it is the maximum over sets U of devices of the load whose replicas
// all lie in U, over the speed of U. It is found by Dinkelbach's iteration: at
// time t a maximum flow from experts to devices either carries all load, or
// its minimum cut is a set U that needs more than t.
func (p Placement) FreeSplit(layer int, load []float64) float64 {
	total := sum(load)
	if total <= 0 {
		return 0
	}
	t := total / p.Fleet.Capacity()
	for range maxCuts {
		n := newNetwork(p, layer, load, t)
		n.saturate()
		need, speed := n.cut()
		if speed <= 0 || need <= t*speed*(1+1e-12) {
			return t
		}
		t = need / speed
	}
	return t
}

// maxCuts bounds Dinkelbach's iteration, which ends after a handful.
const maxCuts = 200

// network is the bipartite flow problem: source -> expert (its load) ->
// devices that hold it -> sink (speed * t).
type network struct {
	devices int
	speed   []float64
	load    []float64
	room    []float64 // what each device can still take
	left    []float64 // load of each expert that has no place yet
	on      [][]int   // devices of each expert
	flow    [][]float64
	at      [][]int // experts of each device
	eps     float64
}

func newNetwork(p Placement, layer int, load []float64, t float64) *network {
	g := len(p.Fleet.Slots)
	n := &network{devices: g, speed: make([]float64, g), load: load, room: make([]float64, g),
		left: append([]float64(nil), load...), on: make([][]int, len(load)),
		flow: make([][]float64, len(load)), at: make([][]int, g)}
	n.eps = sum(load) * 1e-13
	slot := 0
	for d, size := range p.Fleet.Slots {
		n.speed[d] = p.Fleet.speed(d)
		n.room[d] = t * n.speed[d]
		for _, e := range p.Layers[layer][slot : slot+size] {
			if k := len(n.on[e]); k == 0 || n.on[e][k-1] != d {
				n.on[e] = append(n.on[e], d)
				n.flow[e] = append(n.flow[e], 0)
				n.at[d] = append(n.at[d], e)
			}
		}
		slot += size
	}
	return n
}

// saturate finds a maximum flow by shortest augmenting paths.
func (n *network) saturate() {
	for e := range n.load {
		for n.left[e] > n.eps {
			path := n.path(e)
			if path == nil {
				break
			}
			n.push(e, path)
		}
	}
}

// hop is a step of an augmenting path: expert e gives load to device d.
type hop struct{ e, d int }

// path is a shortest way from expert e to a device with room, each hop after
// the first taking from an expert on the device before; nil when there is
// none.
func (n *network) path(e int) []hop {
	from := make([]int, n.devices) // hop that reached the device, -1 none
	for d := range from {
		from[d] = -1
	}
	var hops []hop
	var back []int
	visit := func(e, prev int) int {
		for _, d := range n.on[e] {
			if from[d] >= 0 {
				continue
			}
			from[d] = len(hops)
			hops, back = append(hops, hop{e, d}), append(back, prev)
			if n.room[d] > n.eps {
				return len(hops) - 1
			}
		}
		return -1
	}
	end := visit(e, -1)
	for i := 0; end < 0 && i < len(hops); i++ {
		for _, other := range n.at[hops[i].d] {
			if n.flow[other][n.index(other, hops[i].d)] > n.eps {
				if end = visit(other, i); end >= 0 {
					break
				}
			}
		}
	}
	if end < 0 {
		return nil
	}
	var out []hop
	for i := end; i >= 0; i = back[i] {
		out = append([]hop{hops[i]}, out...)
	}
	return out
}

func (n *network) index(e, d int) int {
	for i, x := range n.on[e] {
		if x == d {
			return i
		}
	}
	return -1
}

// push sends as much as the path bears.
func (n *network) push(e int, path []hop) {
	amount := min(n.left[e], n.room[path[len(path)-1].d])
	for i, h := range path[1:] {
		amount = min(amount, n.flow[h.e][n.index(h.e, path[i].d)])
	}
	n.left[e] -= amount
	n.room[path[len(path)-1].d] -= amount
	n.flow[path[0].e][n.index(path[0].e, path[0].d)] += amount
	for i, h := range path[1:] {
		n.flow[h.e][n.index(h.e, path[i].d)] -= amount
		n.flow[h.e][n.index(h.e, h.d)] += amount
	}
}

// cut is the load that lies wholly on the devices reachable from experts with
// load left, and the speed of those devices; 0, 0 when all load has a place.
func (n *network) cut() (need, speed float64) {
	reached := make([]bool, n.devices)
	var queue []int
	reach := func(e int) {
		for _, d := range n.on[e] {
			if !reached[d] {
				reached[d] = true
				queue = append(queue, d)
			}
		}
	}
	for e, x := range n.left {
		if x > n.eps {
			reach(e)
		}
	}
	for len(queue) > 0 {
		d := queue[0]
		queue = queue[1:]
		for _, e := range n.at[d] {
			if n.flow[e][n.index(e, d)] > n.eps {
				reach(e)
			}
		}
	}
	for e, on := range n.on {
		inside := true
		for _, d := range on {
			inside = inside && reached[d]
		}
		if inside {
			need += n.load[e]
		}
	}
	for d, in := range reached {
		if in {
			speed += n.speed[d]
		}
	}
	return need, speed
}
