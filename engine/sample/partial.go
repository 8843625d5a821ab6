package sample

import "github.com/weirhq/weir/engine"

// Partial selection by heaps: a filter keeps a few of a vocabulary of 150,000,
// so sorting all of it would be waste. Ties go to the lower token, so that the
// result does not depend on a heap's layout.

// topLogits appends the k highest logits to dst: a heap of the k best so far,
// the least of them on top, which most of a row does not pass.
func topLogits(dst []candidate, logits []float32, k int) []candidate {
	for i, x := range logits {
		c := candidate{float64(x), engine.Token(i)}
		switch {
		case x != x: // NaN
		case len(dst) < k:
			dst = append(dst, c)
			if len(dst) == k {
				heapify(dst, lighter)
			}
		case c.weight > dst[0].weight:
			dst[0] = c
			down(dst, 0, lighter)
		}
	}
	return dst
}

// topP keeps the heaviest candidates up to the first that reaches the weight,
// at the end of cand, the heaviest last.
//
// What is lighter than the average of what may be left out can be dropped
// before the heap is built: all of it together does not weigh more than that.
// Half the average leaves room for rounding.
func topP(cand []candidate, total, p float64) (kept []candidate, sum float64) {
	weight := p * total
	floor := (total - weight) / float64(2*len(cand))
	n := 0
	for _, c := range cand {
		if c.weight >= floor {
			cand[n] = c
			n++
		}
	}
	cand = cand[:n]
	heapify(cand, heavier)
	end := len(cand)
	for end > 0 && sum < weight {
		sum += cand[0].weight
		end--
		cand[0], cand[end] = cand[end], cand[0]
		down(cand[:end], 0, heavier)
	}
	return cand[end:], sum
}

// order says which of two candidates is nearer to the top of a heap.
type order func(a, b candidate) bool

func heapify(h []candidate, above order) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		down(h, i, above)
	}
}

func down(h []candidate, i int, above order) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && above(h[c+1], h[c]) {
			c++
		}
		if !above(h[c], h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

func heavier(a, b candidate) bool {
	return a.weight > b.weight || a.weight == b.weight && a.token < b.token
}

func lighter(a, b candidate) bool { return heavier(b, a) }
