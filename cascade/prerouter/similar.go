package prerouter

import (
	"cmp"
	"math"
	"slices"
)

// Similar predicts from embeddings: a Beta posterior of the labels of the most
// similar prompts seen, weighted by exp((cosine-1)/0.1). It keeps a ring of
// int8 vectors and compares by brute force. The embeddings come from an
// endpoint that the operator names; without one there is no Similar.
type Similar struct {
	dim     int
	vectors []int8
	labels  []float64
	next    int
	size    int
}

const (
	similarRing = 20000
	similarTop  = 64
	// similarPrior is the strength of the prior in labels.
	similarPrior = 2
)

// NewSimilar returns an empty memory for vectors of dim values.
func NewSimilar(dim int) *Similar { return &Similar{dim: dim} }

// Observe remembers a vector with its label in [0, 1]. A vector of another
// length, or of length zero, is ignored.
func (s *Similar) Observe(v []float64, y float64) {
	q := quantise(v)
	if q == nil || len(v) != s.dim {
		return
	}
	if s.size < similarRing {
		s.vectors = append(s.vectors, q...)
		s.labels = append(s.labels, y)
		s.size++
		return
	}
	copy(s.vectors[s.next*s.dim:], q)
	s.labels[s.next] = y
	s.next = (s.next + 1) % similarRing
}

// P is the expected label of a prompt with embedding v around a prior mean.
func (s *Similar) P(v []float64, prior float64) float64 {
	q := quantise(v)
	if q == nil || len(v) != s.dim {
		return prior
	}
	type hit struct{ sim, y float64 }
	hits := make([]hit, s.size)
	for i := range s.size {
		dot := 0
		row := s.vectors[i*s.dim : (i+1)*s.dim]
		for j, a := range q {
			dot += int(a) * int(row[j])
		}
		hits[i] = hit{float64(dot) / (127 * 127), s.labels[i]}
	}
	slices.SortFunc(hits, func(a, b hit) int { return cmp.Compare(b.sim, a.sim) })
	right, total := similarPrior*prior, float64(similarPrior)
	for _, h := range hits[:min(similarTop, len(hits))] {
		w := math.Exp((h.sim - 1) / .1)
		right += w * h.y
		total += w
	}
	return right / total
}

// quantise scales v to length 127 and rounds; nil when it has no length.
func quantise(v []float64) []int8 {
	square := 0.0
	for _, x := range v {
		square += x * x
	}
	if !(square > 0) || math.IsInf(square, 0) {
		return nil
	}
	q := make([]int8, len(v))
	for i, x := range v {
		q[i] = int8(math.Round(127 * x / math.Sqrt(square)))
	}
	return q
}
