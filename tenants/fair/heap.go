package fair

// heap is a 4-ary min-heap. Keys lie beside the values, because a comparison
// through a pointer costs a cache miss.
type heap[K int64 | float64, V any] struct {
	nodes []node[K, V]
	// moved tells a value its place, where values must be found again; -1 says
	// that it was removed. Nil tells nobody.
	moved func(v V, to int)
}

type node[K int64 | float64, V any] struct {
	key K
	seq uint32 // first come, first served among equal keys; wraps
	val V
}

func (n *node[K, V]) less(o *node[K, V]) bool {
	return n.key < o.key || n.key == o.key && int32(n.seq-o.seq) < 0
}

func (h *heap[K, V]) len() int { return len(h.nodes) }

func (h *heap[K, V]) push(key K, seq uint32, v V) {
	h.nodes = append(h.nodes, node[K, V]{key, seq, v})
	h.up(len(h.nodes) - 1)
}

// remove takes out the element at i.
func (h *heap[K, V]) remove(i int) {
	last := len(h.nodes) - 1
	if h.moved != nil {
		h.moved(h.nodes[i].val, -1)
	}
	if i != last {
		h.nodes[i] = h.nodes[last]
	}
	h.nodes[last] = node[K, V]{}
	h.nodes = h.nodes[:last]
	if i != last {
		h.fix(i)
	}
}

// rekey changes the key of the element at i.
func (h *heap[K, V]) rekey(i int, key K) {
	h.nodes[i].key = key
	h.fix(i)
}

func (h *heap[K, V]) fix(i int) {
	if !h.down(i) {
		h.up(i)
	}
}

func (h *heap[K, V]) up(i int) {
	n := h.nodes[i]
	for i > 0 {
		parent := (i - 1) / 4
		if !n.less(&h.nodes[parent]) {
			break
		}
		h.set(i, h.nodes[parent])
		i = parent
	}
	h.set(i, n)
}

// down reports whether the element moved.
func (h *heap[K, V]) down(i int) bool {
	n, start := h.nodes[i], i
	for {
		first := 4*i + 1
		if first >= len(h.nodes) {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, len(h.nodes)); c++ {
			if h.nodes[c].less(&h.nodes[least]) {
				least = c
			}
		}
		if !h.nodes[least].less(&n) {
			break
		}
		h.set(i, h.nodes[least])
		i = least
	}
	h.set(i, n)
	return i > start
}

func (h *heap[K, V]) set(i int, n node[K, V]) {
	h.nodes[i] = n
	if h.moved != nil {
		h.moved(n.val, i)
	}
}

// keep drops all nodes that f does not want.
func (h *heap[K, V]) keep(f func(*node[K, V]) bool) {
	kept := h.nodes[:0]
	for i := range h.nodes {
		if f(&h.nodes[i]) {
			kept = append(kept, h.nodes[i])
		}
	}
	clear(h.nodes[len(kept):])
	h.nodes = kept
	for i := (len(kept) - 2) / 4; i >= 0 && len(kept) > 1; i-- {
		h.down(i)
	}
}
