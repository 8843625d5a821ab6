package prerouter

import (
	"fmt"
	"math"
)

// Similar predicts from embeddings: Beta posteriors of the labels of the most
// similar prompts seen, weighted by exp((cosine-1)/0.1). It keeps a ring of
// int8 vectors and compares by brute force. The embeddings come from an
// endpoint that the operator names; without one there is no Similar. P may be
// called by many at once, but not beside Observe.
type Similar struct {
	dim     int
	vectors []int8
	labels  []Prediction // NaN is unknown
	next    int
}

const (
	similarRing = 20000
	similarTop  = 64
	// similarPrior is the strength of the prior in labels.
	similarPrior = 2
	// MaxDimension bounds a vector.
	MaxDimension = 4096
)

// NewSimilar returns an empty memory for vectors of dim values.
func NewSimilar(dim int) *Similar { return &Similar{dim: dim} }

// Dimension is the length of its vectors.
func (s *Similar) Dimension() int { return s.dim }

// Len is the number of prompts that are remembered.
func (s *Similar) Len() int { return len(s.labels) }

// Observe remembers a vector with its labels in [0, 1], NaN for an unknown one. A
// vector of another length, or of length zero, is ignored.
func (s *Similar) Observe(v []float64, label Prediction) {
	q := quantise(v)
	if q == nil || len(v) != s.dim {
		return
	}
	if len(s.labels) < similarRing {
		s.vectors = append(s.vectors, q...)
		s.labels = append(s.labels, label)
		return
	}
	copy(s.vectors[s.next*s.dim:], q)
	s.labels[s.next] = label
	s.next = (s.next + 1) % similarRing
}

// P is what is expected of a prompt with embedding v around a prior, and the
// weight of the labels on which each rests, in labels. It stops and reports
// false when stop, asked now and then, says so.
func (s *Similar) P(v []float64, prior Prediction, stop func() bool) (p, weight Prediction, ok bool) {
	q := quantise(v)
	if q == nil || len(v) != s.dim {
		return prior, Prediction{}, true
	}
	var top nearest
	for i := range s.labels {
		if i%1024 == 0 && stop() {
			return prior, Prediction{}, false
		}
		top.add(i, dot(q, s.vectors[i*s.dim:(i+1)*s.dim]))
	}
	var edge, benefit posterior
	for _, h := range top.hits[:top.n] {
		w := math.Exp((float64(h.dot)/(127*127) - 1) / .1)
		edge.add(s.labels[h.at].Edge, w)
		benefit.add(s.labels[h.at].Benefit, w)
	}
	return Prediction{edge.mean(prior.Edge), benefit.mean(prior.Benefit)}, Prediction{edge.total, benefit.total}, true
}

// posterior is a weighted count of labels.
type posterior struct{ sum, total float64 }

func (p *posterior) add(y, w float64) {
	if !math.IsNaN(y) {
		p.sum += w * y
		p.total += w
	}
}

func (p *posterior) mean(prior float64) float64 {
	return (similarPrior*prior + p.sum) / (similarPrior + p.total)
}

// nearest keeps the vectors with the largest products.
type nearest struct {
	hits  [similarTop]hit
	n     int
	least int // place of the smallest of a full list
}

type hit struct {
	dot int32
	at  int
}

func (t *nearest) add(at int, dot int32) {
	switch {
	case t.n < similarTop:
		t.hits[t.n] = hit{dot, at}
		if t.n++; t.n < similarTop {
			return
		}
	case dot <= t.hits[t.least].dot:
		return
	default:
		t.hits[t.least] = hit{dot, at}
	}
	for i := range t.hits {
		if t.hits[i].dot < t.hits[t.least].dot {
			t.least = i
		}
	}
}

func dot(a, b []int8) (sum int32) {
	b = b[:len(a)]
	for i, x := range a {
		sum += int32(x) * int32(b[i])
	}
	return sum
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

// SimilarState is a Similar as it is kept. The oldest vector is first.
type SimilarState struct {
	Dimension int          `json:"dimension"`
	Vectors   []byte       `json:"vectors"` // one byte a value
	Labels    [][2]float64 `json:"labels"`  // of edge and benefit; -1 is unknown
}

// State copies what s remembers.
func (s *Similar) State() SimilarState {
	st := SimilarState{Dimension: s.dim, Vectors: make([]byte, 0, len(s.vectors))}
	for i := range s.labels {
		at := (s.next + i) % len(s.labels)
		for _, x := range s.vectors[at*s.dim : (at+1)*s.dim] {
			st.Vectors = append(st.Vectors, byte(x))
		}
		st.Labels = append(st.Labels, [2]float64{orMinus(s.labels[at].Edge), orMinus(s.labels[at].Benefit)})
	}
	return st
}

func orMinus(y float64) float64 {
	if math.IsNaN(y) {
		return -1
	}
	return y
}

// RestoreSimilar is the Similar of a state. ErrState when that is impossible.
func RestoreSimilar(st SimilarState) (*Similar, error) {
	n := len(st.Labels)
	if st.Dimension < 1 || st.Dimension > MaxDimension || n > similarRing || len(st.Vectors) != n*st.Dimension {
		return nil, fmt.Errorf("%w: %d vectors of %d values in %d bytes", ErrState, n, st.Dimension, len(st.Vectors))
	}
	s := &Similar{dim: st.Dimension, vectors: make([]int8, len(st.Vectors)), labels: make([]Prediction, n)}
	for i, x := range st.Vectors {
		s.vectors[i] = int8(x)
	}
	for i, l := range st.Labels {
		s.labels[i] = Prediction{known(l[0]), known(l[1])}
	}
	return s, nil
}

func known(y float64) float64 {
	if !(y >= 0 && y <= 1) {
		return math.NaN()
	}
	return y
}
