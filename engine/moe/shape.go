package moe

import (
	"fmt"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/moe/kernel"
	"github.com/weirhq/weir/experts/gate"
)

// shape is the sizes of a model.
type shape struct {
	arch                 string
	layers, width, vocab int
	heads, kvHeads, dim  int // attention; dim is of one head
	inner                int // of the feed-forward network or of one expert
	experts, topK        int // 0 where the model is dense
	context              int // that the model was trained on
	eps                  float32
	ropeBase             float64
	halves               bool // rotary pairs are (i, i+dim/2), not (2i, 2i+1)
	queryNorm            bool // queries and keys are normalised per head
	params               int64
}

// limits bound what a file may ask for.
const (
	maxLayers = 512
	maxWidth  = 1 << 16
	maxHeads  = 1 << 10
)

// readShape takes the sizes from a file's head and refuses what this runner
// would compute wrongly.
func readShape(f *gguf.File) (shape, error) {
	s := shape{arch: f.Text("general.architecture")}
	if s.arch != "llama" && s.arch != "qwen3moe" {
		return s, fmt.Errorf("architecture %q: this runner knows llama and qwen3moe; the llama runner knows more", s.arch)
	}
	s.halves, s.queryNorm = s.arch == "qwen3moe", s.arch == "qwen3moe"
	n := func(key string, otherwise int) int {
		v, ok := f.Int(s.arch + "." + key)
		if !ok || v < 0 || v > 1<<30 {
			return otherwise
		}
		return int(v)
	}
	s.layers, s.width, s.context = n("block_count", 0), n("embedding_length", 0), n("context_length", 0)
	s.heads = n("attention.head_count", 0)
	s.kvHeads = n("attention.head_count_kv", s.heads)
	s.dim = n("attention.key_length", s.width/max(1, s.heads))
	s.experts, s.topK = n("expert_count", 0), n("expert_used_count", 0)
	s.inner = n("feed_forward_length", 0)
	if s.experts > 0 {
		s.inner = n("expert_feed_forward_length", s.inner)
	}
	eps, _ := f.Float(s.arch + ".attention.layer_norm_rms_epsilon")
	s.eps, s.ropeBase = float32(eps), 10000
	if base, ok := f.Float(s.arch + ".rope.freq_base"); ok {
		s.ropeBase = base
	}
	if v := n("attention.value_length", s.dim); v != s.dim {
		return s, fmt.Errorf("values of %d dimensions beside keys of %d", v, s.dim)
	}
	if v := n("rope.dimension_count", s.dim); v != s.dim {
		return s, fmt.Errorf("rotary embedding of %d of %d dimensions", v, s.dim)
	}
	if kind := f.Text(s.arch + ".rope.scaling.type"); kind != "" && kind != "none" {
		return s, fmt.Errorf("rotary embedding scaled by %q", kind)
	}
	for _, t := range f.Tensors {
		s.params += int64(t.Elems())
	}
	return s, s.check()
}

func (s shape) check() error {
	within := func(n, lo, top int) bool { return n >= lo && n <= top }
	switch {
	case !within(s.layers, 1, maxLayers) || !within(s.width, 1, maxWidth) || !within(s.inner, 1, maxWidth) || s.context < 1:
		return fmt.Errorf("%d layers of width %d and %d, context %d", s.layers, s.width, s.inner, s.context)
	case !within(s.heads, 1, maxHeads) || !within(s.kvHeads, 1, s.heads) || s.heads%s.kvHeads != 0 || !within(s.dim, 1, maxWidth):
		return fmt.Errorf("%d heads over %d of %d dimensions", s.heads, s.kvHeads, s.dim)
	case s.width%kernel.Lanes != 0 || s.inner%kernel.Lanes != 0 || s.dim%kernel.Lanes != 0:
		return fmt.Errorf("sizes %d, %d and %d: want multiples of %d", s.width, s.inner, s.dim, kernel.Lanes)
	case !(s.eps > 0) || !(s.ropeBase > 1):
		return fmt.Errorf("norm epsilon %v, rotary base %v", s.eps, s.ropeBase)
	case s.experts > 0:
		return s.gate().Validate()
	}
	return nil
}

// gate is how both architectures choose experts: softmax over all, the weights
// of the chosen ones normalised.
func (s shape) gate() gate.Spec {
	return gate.Spec{Experts: s.experts, TopK: s.topK, Score: gate.Softmax, Normalise: true}
}

// modelError makes an error one of a model file.
func modelError(path string, err error) error {
	return fmt.Errorf("%w: %s: %w", engine.ErrModel, path, err)
}
