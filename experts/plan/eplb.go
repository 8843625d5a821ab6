package plan

import (
	"fmt"
	"slices"
)

// The functions of this file follow deepseek-ai/EPLB (eplb.py at d52c72d)
// exactly, with ties to the lowest index where torch.sort leaves them open.
// They may put an expert twice on one device.

// Pack puts n weights into m packs of n/m each: heaviest first, each into the
// lightest pack that is not full. It returns each item's pack and its rank in
// it. m must divide n (ErrFleet).
func Pack(w []float64, m int) (pack, rank []int, err error) {
	if m < 1 || len(w)%m != 0 {
		return nil, nil, fmt.Errorf("%w: %d items do not divide into %d packs", ErrFleet, len(w), m)
	}
	size := len(w) / m
	pack, rank = make([]int, len(w)), make([]int, len(w))
	if size == 1 {
		for i := range pack {
			pack[i] = i
		}
		return pack, rank, nil
	}
	sum, used := make([]float64, m), make([]int, m)
	for _, i := range descending(w) {
		best := -1
		for p := range sum {
			if used[p] < size && (best < 0 || sum[p] < sum[best]) {
				best = p
			}
		}
		pack[i], rank[i] = best, used[best]
		used[best]++
		sum[best] += w[i]
	}
	return pack, rank, nil
}

// descending is the order of w from heavy to light, ties by index.
func descending(w []float64) []int {
	order := make([]int, len(w))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case w[a] > w[b]:
			return -1
		case w[a] < w[b]:
			return 1
		}
		return 0
	})
	return order
}

// Replicate gives slots-E extra replicas, one after the other, to the expert
// with the highest load per replica. It returns the expert and the replica
// number of each slot, and replicas per expert. slots must be at least E
// (ErrFleet).
func Replicate(w []float64, slots int) (phy2log, rank, count []int, err error) {
	n := len(w)
	if slots < n || n == 0 {
		return nil, nil, nil, fmt.Errorf("%w: %d slots for %d experts", ErrFleet, slots, n)
	}
	phy2log, rank, count = make([]int, slots), make([]int, slots), make([]int, n)
	for i := range n {
		phy2log[i], count[i] = i, 1
	}
	for i := n; i < slots; i++ {
		best := 0
		for e := range w {
			if w[e]/float64(count[e]) > w[best]/float64(count[best]) {
				best = e
			}
		}
		phy2log[i], rank[i] = best, count[best]
		count[best]++
	}
	return phy2log, rank, count, nil
}

// EPLB is rebalance_experts of deepseek-ai/EPLB for one layer: hierarchical
// when nodes divides groups, else global. It returns phy2log.
func EPLB(w []float64, slots, groups, nodes, devices int) ([]int, error) {
	if groups < 1 || nodes < 1 || devices < 1 {
		return nil, fmt.Errorf("%w: %d groups, %d nodes, %d devices", ErrFleet, groups, nodes, devices)
	}
	if groups%nodes != 0 {
		groups, nodes = 1, 1
	}
	if len(w)%groups != 0 || devices%nodes != 0 || slots%devices != 0 {
		return nil, fmt.Errorf("%w: EPLB needs groups (%d) to divide %d experts, nodes (%d) to divide %d devices, and devices to divide %d slots",
			ErrFleet, groups, len(w), nodes, devices, slots)
	}
	return hierarchical(w, slots, groups, nodes, devices)
}

func hierarchical(w []float64, slots, groups, nodes, devices int) ([]int, error) {
	order, err := groupsToNodes(w, groups, nodes)
	if err != nil {
		return nil, err
	}
	perNode := len(w) / nodes
	out := make([]int, 0, slots)
	for n := range nodes {
		experts := order[n*perNode : (n+1)*perNode]
		row, err := packNode(w, experts, slots/nodes, devices/nodes)
		if err != nil {
			return nil, err
		}
		out = append(out, row...)
	}
	return out, nil
}

// groupsToNodes packs whole expert groups onto nodes and returns the experts
// in node order.
func groupsToNodes(w []float64, groups, nodes int) ([]int, error) {
	size := len(w) / groups
	sums := make([]float64, groups)
	for e, x := range w {
		sums[e/size] += x
	}
	pack, rank, err := Pack(sums, nodes)
	if err != nil {
		return nil, err
	}
	order := make([]int, len(w))
	for e := range w {
		g := e / size
		order[(pack[g]*(groups/nodes)+rank[g])*size+e%size] = e
	}
	return order, nil
}

// packNode replicates the experts of one node and packs them onto its devices.
func packNode(w []float64, experts []int, slots, devices int) ([]int, error) {
	local := make([]float64, len(experts))
	for i, e := range experts {
		local[i] = w[e]
	}
	phy, _, count, err := Replicate(local, slots)
	if err != nil {
		return nil, err
	}
	shares := make([]float64, slots)
	for s, i := range phy {
		shares[s] = local[i] / float64(count[i])
	}
	pack, rank, err := Pack(shares, devices)
	if err != nil {
		return nil, err
	}
	row := make([]int, slots)
	for s, i := range phy {
		row[pack[s]*(slots/devices)+rank[s]] = experts[i]
	}
	return row, nil
}
