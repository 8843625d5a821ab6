package load

import (
	"fmt"
	"math"
)

// Phase is where in serving tokens were routed. Prefill and decode load
// experts so differently that each has its own statistics and placement.
type Phase string

// The phases.
const (
	Prefill Phase = "prefill"
	Decode  Phase = "decode"
)

// Window is what one worker saw of its experts between two points in time.
// Placement reads Demand: reading Served would let routing hide the skew that
// it works around.
type Window struct {
	Phase  Phase  `json:"phase"`
	TopK   int    `json:"top_k"`
	Tokens int64  `json:"tokens"` // tokens through each layer
	Demand Counts `json:"demand"` // what the gate's own top-k asked for
	Served Counts `json:"served"` // what ran, after any re-routing
	// Rigid is the part of Demand that left the router no choice.
	// Nil says that nothing is known, then all demand counts as rigid.
	Rigid  Counts  `json:"rigid,omitempty"`
	Shapes []Shape `json:"shapes,omitempty"`
}

// Enough reports whether the window holds at least 20*E/k tokens, below which
// counts are noise.
func (w Window) Enough() bool {
	return len(w.Demand) > 0 && w.Tokens >= int64(20*w.Demand.Experts()/max(1, w.TopK))
}

// Distortion is the metric over all layers.
func (w Window) Distortion() float64 {
	sum, moved := 0.0, 0.0
	for l, row := range w.Demand {
		s := Sum(row)
		sum += s
		moved += s * Distortion(row, w.Served[l])
	}
	if sum <= 0 {
		return 0
	}
	return moved / sum
}

// Planned splits demand into what placement has to plan for, by expert, and
// what routing levels out over devices, by layer. routed is how much of the
// flexible demand routing can level: 0 without routing, at most 1. Rigid demand
// stays where the gate wants it, so replicas must serve it.
func (w Window) Planned(routed float64) (Counts, []float64) {
	level := make([]float64, len(w.Demand))
	if w.Rigid == nil || routed <= 0 {
		return w.Demand, level
	}
	out := w.Demand.Clone()
	for l, row := range out {
		for e := range row {
			flex := routed * max(0, row[e]-w.Rigid[l][e])
			row[e] -= flex
			level[l] += flex
		}
	}
	return out, level
}

// Validate checks that all counts of the window are sound and of one shape.
func (w Window) Validate() error {
	if err := w.Demand.Validate(); err != nil {
		return fmt.Errorf("demand: %w", err)
	}
	for _, c := range []struct {
		name   string
		counts Counts
	}{{"served", w.Served}, {"rigid", w.Rigid}} {
		if c.counts == nil {
			continue
		}
		if err := c.counts.Validate(); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if len(c.counts) != len(w.Demand) || c.counts.Experts() != w.Demand.Experts() {
			return fmt.Errorf("%s: %w", c.name, ErrShape)
		}
	}
	return nil
}

// Recorder gathers windows for one phase. It is owned by the loop that runs
// the model and is not safe for concurrent use; recording does not allocate.
type Recorder struct {
	phase                 Phase
	topK                  int
	tokens                int64
	demand, served, rigid Counts
	shapes                []Shape
}

// NewRecorder makes a recorder for a model of the given shape.
func NewRecorder(phase Phase, layers, experts, topK int) *Recorder {
	r := &Recorder{phase: phase, topK: topK}
	r.reset(layers, experts)
	return r
}

func (r *Recorder) reset(layers, experts int) {
	r.tokens = 0
	r.demand, r.served, r.rigid = NewCounts(layers, experts), NewCounts(layers, experts), NewCounts(layers, experts)
	r.shapes = make([]Shape, layers)
}

// Tokens says that n tokens went through the model.
func (r *Recorder) Tokens(n int) { r.tokens += int64(n) }

// Pending is the number of tokens since the last Take.
func (r *Recorder) Pending() int64 { return r.tokens }

// Token counts one token of one layer: the gate's own choice, what was served
// instead (the same slice without re-routing), and the share of its experts
// that the scores left no choice about, 1 without re-routing.
func (r *Recorder) Token(layer int, demand, served []int32, rigid float32) {
	d, s := r.demand[layer], r.served[layer]
	for _, e := range demand {
		d[e]++
	}
	for _, e := range served {
		s[e]++
	}
	row := r.rigid[layer]
	for _, e := range demand {
		row[e] += float64(rigid)
	}
}

// Shape counts one token's score shape; see Shape.
func (r *Recorder) Shape(layer int, mass, next float32) { r.shapes[layer].Observe(mass, next) }

// Take returns the window so far and starts the next one.
func (r *Recorder) Take() Window {
	w := Window{Phase: r.phase, TopK: r.topK, Tokens: r.tokens,
		Demand: r.demand, Served: r.served, Rigid: r.rigid, Shapes: r.shapes}
	r.reset(len(w.Demand), w.Demand.Experts())
	return w
}

// Average is an exponential mean of windows whose half-life is counted in
// tokens, not in seconds, so that a quiet hour does not forget.
type Average struct {
	halfLife float64
	mean     Counts
	square   Counts
	weight   float64
}

// NewAverage makes an average that halves the weight of what it knows every
// halfLife tokens.
func NewAverage(halfLife int64) *Average { return &Average{halfLife: float64(max(1, halfLife))} }

// Add folds in counts of the given number of tokens. Counts enter as rates per
// token. A change of shape is ErrShape.
func (a *Average) Add(c Counts, tokens int64) error {
	if tokens <= 0 || len(c) == 0 {
		return nil
	}
	if a.mean == nil {
		a.mean, a.square = NewCounts(len(c), c.Experts()), NewCounts(len(c), c.Experts())
	}
	if len(c) != len(a.mean) || c.Experts() != a.mean.Experts() {
		return fmt.Errorf("%w: average of %dx%d got %dx%d", ErrShape, len(a.mean), a.mean.Experts(), len(c), c.Experts())
	}
	keep := math.Exp2(-float64(tokens) / a.halfLife)
	a.weight = a.weight*keep + (1 - keep)
	for l, row := range c {
		m, s := a.mean[l], a.square[l]
		for e, x := range row {
			rate := x / float64(tokens)
			m[e] = m[e]*keep + rate*(1-keep)
			s[e] = s[e]*keep + rate*rate*(1-keep)
		}
	}
	return nil
}

// Clone copies a.
func (a *Average) Clone() *Average {
	c := *a
	if a.mean != nil {
		c.mean, c.square = a.mean.Clone(), a.square.Clone()
	}
	return &c
}

// Mean is the expected load per token plus z standard deviations between
// windows (FlashLB's mean + z*std, vllm-ascend). It is nil before any Add.
func (a *Average) Mean(z float64) Counts {
	if a.mean == nil || a.weight == 0 {
		return nil
	}
	out := a.mean.Clone()
	for l, row := range out {
		for e := range row {
			row[e] /= a.weight
			if z != 0 {
				row[e] += z * math.Sqrt(max(0, a.square[l][e]/a.weight-row[e]*row[e]))
			}
		}
	}
	return out
}
