package sample

// Partial selection: a max-heap over the candidates is built in linear time and
// only as many are popped as the filter keeps, which for real models is a few
// of a vocabulary of 150,000. Ties go to the lower token, so that the result
// does not depend on the heap's layout.

// topK keeps the k heaviest candidates and returns them with their weight.
func topK(cand []candidate, k int) (kept []candidate, total float64) {
	return pop(cand, func(n int, _ float64) bool { return n >= k })
}

// topP keeps the heaviest candidates up to the first that reaches the weight.
func topP(cand []candidate, weight float64) (kept []candidate, total float64) {
	return pop(cand, func(_ int, sum float64) bool { return sum >= weight })
}

// pop moves the heaviest candidates to the end of cand, the heaviest last,
// until enough says stop.
func pop(cand []candidate, enough func(n int, sum float64) bool) ([]candidate, float64) {
	for i := len(cand)/2 - 1; i >= 0; i-- {
		down(cand, i)
	}
	end, sum := len(cand), 0.0
	for end > 0 && !enough(len(cand)-end, sum) {
		sum += cand[0].weight
		end--
		cand[0], cand[end] = cand[end], cand[0]
		down(cand[:end], 0)
	}
	return cand[end:], sum
}

func down(h []candidate, i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && heavier(h[c+1], h[c]) {
			c++
		}
		if !heavier(h[c], h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

func heavier(a, b candidate) bool {
	return a.weight > b.weight || a.weight == b.weight && a.token < b.token
}
