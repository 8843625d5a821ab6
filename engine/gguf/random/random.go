// Package random writes models with random weights: files of a chosen size and
// architecture that cost what a trained model costs, for benchmarks.
package random

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"github.com/weirhq/weir/engine/gguf"
)

// Options describe a model to write.
type Options struct {
	Arch    string    // "llama" (dense) or "qwen3moe" (16 experts, 2 per token)
	Params  int64     // wanted number of parameters; met within 15 %
	Context int       // context length the file names
	Type    gguf.Type // of the matrices: gguf.F32, gguf.F16 or gguf.Q8_0
	Seed    uint64    // same seed, same file
	// ChatTemplate goes into the file where it is not empty; with it come the
	// ChatML markers as control tokens.
	ChatTemplate string
}

// shape is the size of each part of a model.
type shape struct {
	width, layers, heads, kvHeads, ff, experts int
}

const (
	headDim    = 64
	numExperts = 16
)

// Write writes the model and returns its number of parameters.
func Write(w io.Writer, o Options) (int64, error) {
	if o.Context < 1 {
		return 0, fmt.Errorf("context of %d tokens", o.Context)
	}
	vocab := newVocab(o.ChatTemplate != "")
	s, err := fit(o.Arch, o.Params, len(vocab.tokens))
	if err != nil {
		return 0, err
	}
	tensors := s.tensors(o, len(vocab.tokens))
	var params int64
	for _, t := range tensors {
		params += int64(t.Elems())
	}
	return params, gguf.Write(w, s.meta(o, vocab), tensors)
}

// fit chooses the width for which the number of layers is nearest to a usual
// proportion (width 768 with 16 layers) and gives the wanted parameters.
func fit(arch string, params int64, vocab int) (shape, error) {
	if arch != "llama" && arch != "qwen3moe" {
		return shape{}, fmt.Errorf("architecture %q: want llama or qwen3moe", arch)
	}
	if params < 1e6 || params > 1e10 {
		return shape{}, fmt.Errorf("%d parameters: want 1M to 10B", params)
	}
	best, bestErr := shape{}, math.Inf(1)
	for width := 2 * headDim; width <= 8192; width += headDim {
		s := shape{width: width, heads: width / headDim, kvHeads: width / headDim, ff: width * 8 / 3 / 32 * 32}
		for s.kvHeads > 4 && s.kvHeads%2 == 0 {
			s.kvHeads /= 2
		}
		if arch == "qwen3moe" {
			s.experts, s.ff = numExperts, width/2
		}
		body := float64(params) - float64(2*vocab*width)
		s.layers = int(math.Round(body / float64(s.layerParams())))
		if s.layers < 1 {
			break
		}
		off := math.Abs(math.Log(float64(s.layers) * 48 / float64(width)))
		off += 8 * math.Abs(float64(s.layers)*float64(s.layerParams())/body-1)
		if off < bestErr {
			best, bestErr = s, off
		}
	}
	return best, nil
}

// layerParams counts the matrices of one layer.
func (s shape) layerParams() int64 {
	d, kv, ffn := int64(s.width), int64(s.kvHeads*headDim), int64(3*s.width*s.ff)
	if s.experts > 0 {
		ffn = ffn*int64(s.experts) + d*int64(s.experts)
	}
	return 2*d*d + 2*d*kv + ffn
}

func (s shape) meta(o Options, v vocab) []gguf.Entry {
	var out []gguf.Entry
	add := func(key string, value any) { out = append(out, gguf.Entry{Key: key, Value: value}) }
	add("general.architecture", o.Arch)
	add("general.name", "random weights")
	size := func(key string, n int) { add(o.Arch+"."+key, uint32(n)) }
	size("context_length", o.Context)
	size("embedding_length", s.width)
	size("block_count", s.layers)
	size("feed_forward_length", s.ff)
	size("attention.head_count", s.heads)
	size("attention.head_count_kv", s.kvHeads)
	size("attention.key_length", headDim)
	size("attention.value_length", headDim)
	size("rope.dimension_count", headDim)
	if s.experts > 0 {
		size("expert_count", s.experts)
		size("expert_used_count", 2)
		size("expert_feed_forward_length", s.ff)
	}
	add(o.Arch+".attention.layer_norm_rms_epsilon", float32(1e-5))
	add(o.Arch+".rope.freq_base", float32(10000))
	if o.ChatTemplate != "" {
		add("tokenizer.chat_template", o.ChatTemplate)
	}
	return append(out, v.meta()...)
}

// tensors lists the tensors by the names that llama.cpp looks for.
func (s shape) tensors(o Options, vocab int) []gguf.Content {
	var out []gguf.Content
	matrix := func(name string, kind gguf.Type, dims ...uint64) {
		out = append(out, content(name, kind, o.Seed+uint64(len(out)), dims))
	}
	norm := func(name string, n int) { out = append(out, ones(name, n)) }
	d, kv, ff := uint64(s.width), uint64(s.kvHeads*headDim), uint64(s.ff)
	matrix("token_embd.weight", o.Type, d, uint64(vocab))
	matrix("output.weight", o.Type, d, uint64(vocab))
	norm("output_norm.weight", s.width)
	for l := range s.layers {
		p := fmt.Sprintf("blk.%d.", l)
		norm(p+"attn_norm.weight", s.width)
		matrix(p+"attn_q.weight", o.Type, d, d)
		matrix(p+"attn_k.weight", o.Type, d, kv)
		matrix(p+"attn_v.weight", o.Type, d, kv)
		matrix(p+"attn_output.weight", o.Type, d, d)
		norm(p+"ffn_norm.weight", s.width)
		if s.experts == 0 {
			matrix(p+"ffn_gate.weight", o.Type, d, ff)
			matrix(p+"ffn_up.weight", o.Type, d, ff)
			matrix(p+"ffn_down.weight", o.Type, ff, d)
			continue
		}
		n := uint64(s.experts)
		norm(p+"attn_q_norm.weight", headDim)
		norm(p+"attn_k_norm.weight", headDim)
		matrix(p+"ffn_gate_inp.weight", gguf.F32, d, n)
		matrix(p+"ffn_gate_exps.weight", o.Type, d, ff, n)
		matrix(p+"ffn_up_exps.weight", o.Type, d, ff, n)
		matrix(p+"ffn_down_exps.weight", o.Type, ff, d, n)
	}
	return out
}

// content is a tensor of normal values with variance 1/fan-in, which keeps
// activations in range through any number of layers.
func content(name string, kind gguf.Type, seed uint64, dims []uint64) gguf.Content {
	c := gguf.Content{Tensor: gguf.Tensor{Name: name, Dims: dims, Type: kind}}
	c.Data = func(w io.Writer) error {
		rng := rand.New(rand.NewPCG(seed, 1))
		scale := float32(1 / math.Sqrt(float64(dims[0])))
		row := make([]float32, dims[0])
		var raw []byte
		for range c.Elems() / dims[0] {
			for i := range row {
				row[i] = scale * float32(rng.NormFloat64())
			}
			var err error
			if raw, err = gguf.AppendFloats(raw[:0], kind, row); err != nil {
				return err
			}
			if _, err := w.Write(raw); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

// ones is a norm's weight.
func ones(name string, n int) gguf.Content {
	c := gguf.Content{Tensor: gguf.Tensor{Name: name, Dims: []uint64{uint64(n)}, Type: gguf.F32}}
	c.Data = func(w io.Writer) error {
		row := make([]float32, n)
		for i := range row {
			row[i] = 1
		}
		raw, err := gguf.AppendFloats(nil, gguf.F32, row)
		if err != nil {
			return err
		}
		_, err = w.Write(raw)
		return err
	}
	return c
}
