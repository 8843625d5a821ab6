// Package gate chooses experts from gate scores: as the model does it, and
// LASER-style, where flat scores leave a choice. It is pure and does not
// allocate per token. A Gate or Router belongs to one goroutine.
package gate

import (
	"errors"
	"fmt"
	"math"
)

// ErrSpec says that a gate or its parameters make no sense.
var ErrSpec = errors.New("gate cannot be built")

// Score is the function from logits to scores.
type Score int

// The score functions.
const (
	Softmax Score = iota // Mixtral, OLMoE, Qwen3, DeepSeek-V2
	Sigmoid              // DeepSeek-V3, GLM-4.5
)

// Spec is how a model chooses experts. Groups limit the choice to the experts
// of the TopGroups best of Groups equal groups, a group's worth being the sum
// of its GroupBest best scores (1 in DeepSeek-V2, 2 in DeepSeek-V3).
type Spec struct {
	Experts, TopK     int
	Score             Score
	Groups, TopGroups int // 0 or 1 groups: no limit
	GroupBest         int // 0 means 1
	Normalise         bool
	Scale             float32 // of the weights; 0 means 1
}

// MaxExperts bounds a gate.
const MaxExperts = 4096

// Validate checks the numbers of the spec.
func (s Spec) Validate() error {
	if s.Experts < 1 || s.Experts > MaxExperts || s.TopK < 1 || s.TopK > s.Experts {
		return fmt.Errorf("%w: top %d of %d experts", ErrSpec, s.TopK, s.Experts)
	}
	if s.Groups > 1 {
		if s.Experts%s.Groups != 0 || s.TopGroups < 1 || s.TopGroups > s.Groups ||
			s.TopGroups*(s.Experts/s.Groups) < s.TopK || s.GroupBest > s.Experts/s.Groups || s.GroupBest < 0 {
			return fmt.Errorf("%w: top %d of %d groups for top %d of %d experts", ErrSpec, s.TopGroups, s.Groups, s.TopK, s.Experts)
		}
	}
	return nil
}

// Gate chooses as the model does.
type Gate struct {
	spec   Spec
	biased []float32 // selection scores, masked by group
	groups []float32
	rank   []int32
}

// New makes a gate.
func New(spec Spec) (*Gate, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return &Gate{spec: spec, biased: make([]float32, spec.Experts),
		groups: make([]float32, max(1, spec.Groups)), rank: make([]int32, 0, spec.Experts)}, nil
}

// Spec is what the gate was made from.
func (g *Gate) Spec() Spec { return g.spec }

// Scores writes the scores of logits into dst; both have one value per expert.
func (g *Gate) Scores(dst, logits []float32) {
	if g.spec.Score == Sigmoid {
		for e, x := range logits {
			dst[e] = float32(1 / (1 + math.Exp(-float64(x))))
		}
		return
	}
	top := float32(math.Inf(-1))
	for _, x := range logits {
		top = max(top, x)
	}
	sum := 0.0
	for e, x := range logits {
		y := math.Exp(float64(x - top))
		dst[e] = float32(y)
		sum += y
	}
	for e := range dst {
		dst[e] = float32(float64(dst[e]) / sum)
	}
}

// TopK appends the model's own choice to sel[:0]: TopK experts by selection
// score, best first, ties to the lower index. bias, nil or one per expert, is
// added to scores for selection only (DeepSeek-V3's correction bias). NaN
// ranks last.
func (g *Gate) TopK(sel []int32, scores, bias []float32) []int32 {
	g.prepare(scores, bias)
	return best(sel[:0], g.biased, g.spec.TopK)
}

// Weights writes the combine weight of each selected expert into dst: the
// original scores, normalised and scaled exactly as the model does, whatever
// chose the experts.
func (g *Gate) Weights(dst, scores []float32, sel []int32) {
	sum := float32(0)
	for i, e := range sel {
		dst[i] = scores[e]
		sum += scores[e]
	}
	f := float32(1)
	if g.spec.Scale != 0 {
		f = g.spec.Scale
	}
	if g.spec.Normalise && sum > 0 {
		f /= sum
	}
	for i := range sel {
		dst[i] *= f
	}
}

// masked is the selection score of an expert outside the chosen groups.
var masked = float32(math.Inf(-1))

// prepare fills biased: the scores by which experts are selected.
func (g *Gate) prepare(scores, bias []float32) {
	copy(g.biased, scores)
	for e, b := range bias {
		g.biased[e] += b
	}
	for e, x := range g.biased {
		if x != x {
			g.biased[e] = -math.MaxFloat32
		}
	}
	if g.spec.Groups > 1 {
		g.mask()
	}
}

// mask removes the experts outside the best groups.
func (g *Gate) mask() {
	size := g.spec.Experts / g.spec.Groups
	for i := range g.groups {
		g.groups[i] = 0
		g.rank = best(g.rank[:0], g.biased[i*size:(i+1)*size], max(1, g.spec.GroupBest))
		for _, e := range g.rank {
			g.groups[i] += g.biased[i*size+int(e)]
		}
	}
	g.rank = best(g.rank[:0], g.groups, g.spec.TopGroups)
	for i := range g.groups {
		if contains(g.rank, int32(i)) {
			continue
		}
		for e := i * size; e < (i+1)*size; e++ {
			g.biased[e] = masked
		}
	}
}

// best appends the n highest of x to sel, by (-x, index).
func best(sel []int32, x []float32, n int) []int32 {
	from := len(sel)
	for e, v := range x {
		full := len(sel)-from == n
		if full && v <= x[sel[len(sel)-1]] {
			continue
		}
		if !full {
			sel = append(sel, 0)
		}
		i := len(sel) - 1
		for ; i > from && x[sel[i-1]] < v; i-- {
			sel[i] = sel[i-1]
		}
		sel[i] = int32(e)
	}
	return sel
}

func contains(sel []int32, e int32) bool {
	for _, x := range sel {
		if x == e {
			return true
		}
	}
	return false
}
