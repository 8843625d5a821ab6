package prerouter

import "math"

// Prediction is what a Router expects of a prompt.
type Prediction struct {
	Edge    float64 // probability that the edge is right
	Benefit float64 // probability that the cloud is right where the edge is not
}

// Router predicts both from hashed features, online. Rare words weigh more (the
// inverse document frequency of what it has seen). It has one owner.
type Router struct {
	edge, benefit *FTRL
	documents     float64
	frequency     []uint32
	scratch       []Feature
}

// NewRouter returns a router that has seen nothing: it predicts one half.
func NewRouter() *Router {
	return &Router{edge: NewFTRL(), benefit: NewFTRL(), frequency: make([]uint32, dimension)}
}

// Count notes the words of a prompt, labelled or not.
func (r *Router) Count(x []Feature) {
	r.documents++
	for i, f := range x {
		if first(x[:i], f.Index) {
			r.frequency[f.Index]++
		}
	}
}

// first reports whether index is not among the recent features; words that
// come again far apart may count twice, which hardly matters.
func first(x []Feature, index uint32) bool {
	for i := len(x) - 1; i >= 0 && i >= len(x)-64; i-- {
		if x[i].Index == index {
			return false
		}
	}
	return true
}

// hashedLength is the length that the hashed part of a vector is scaled to.
const hashedLength = 1.5

// weigh scales hashed features by inverse document frequency and their vector
// to a fixed length. The result is valid until the next call.
func (r *Router) weigh(x []Feature) []Feature {
	r.scratch = append(r.scratch[:0], x...)
	square := 0.0
	for i := range r.scratch {
		f := &r.scratch[i]
		if f.Index < slotHashed {
			continue
		}
		f.Value *= 1 + math.Log((r.documents+1)/(float64(r.frequency[f.Index])+1))
		square += f.Value * f.Value
	}
	if square > 0 {
		scale := hashedLength / math.Sqrt(square)
		for i := range r.scratch {
			if r.scratch[i].Index >= slotHashed {
				r.scratch[i].Value *= scale
			}
		}
	}
	return r.scratch
}

// Predict returns what is expected of a prompt with these features.
func (r *Router) Predict(x []Feature) Prediction {
	v := r.weigh(x)
	return Prediction{Edge: r.edge.P(v), Benefit: r.benefit.P(v)}
}

// Observe learns from an outcome of weight w (1/propensity). The prompt must
// have been counted before.
func (r *Router) Observe(x []Feature, edge, cloud, w float64) {
	v := r.weigh(x)
	r.edge.Observe(v, edge, w)
	r.benefit.Observe(v, math.Max(0, cloud-edge), w)
}

// Times are a node's estimates of money and time for one request; the money
// and the latency weight share one unit.
type Times struct {
	EdgeCost, CloudCost       float64
	EdgeSeconds, CloudSeconds float64
	PerSecond                 float64 // price of a second of latency
}

// SkipEdge reports whether to ask the cloud at once when an edge answer would
// be escalated with probability pEscalate: the edge pass no longer pays when
// what it saves on average is less than what it costs.
func SkipEdge(pEscalate float64, t Times) bool {
	saves := (1 - pEscalate) * (t.CloudCost + t.PerSecond*t.CloudSeconds)
	costs := t.EdgeCost + t.PerSecond*t.EdgeSeconds
	return saves <= costs
}

// Hedge reports whether to start the cloud call beside the edge: escalation is
// likely, and waiting for the edge first could miss the deadline (seconds; 0 is
// none, and then nothing is hedged).
func Hedge(pEscalate, deadline float64, t Times) bool {
	return deadline > 0 && pEscalate > .5 && t.EdgeSeconds+t.CloudSeconds > deadline && t.CloudSeconds <= deadline
}
