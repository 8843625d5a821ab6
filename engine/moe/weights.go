package moe

import (
	"fmt"
	"io"
	"slices"

	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/moe/kernel"
	"github.com/weirhq/weir/engine/moe/shard"
)

// weights are what all sequences share, but for the experts.
type weights struct {
	embed, output kernel.Matrix
	outputNorm    []float32
	layers        []layer
}

// layer is one block of the model.
type layer struct {
	attnNorm, ffnNorm []float32
	qNorm, kNorm      []float32 // nil where queries and keys are not normalised
	q, k, v, o        kernel.Matrix
	router            kernel.Matrix // of a mixture of experts
	ffn               *shard.Expert // of a dense model
}

// loader reads tensors and remembers which.
type loader struct {
	f    *gguf.File
	r    io.ReaderAt
	seen []string
}

// raw reads a tensor that must have the given dimensions.
func (l *loader) raw(name string, dims ...uint64) (gguf.Type, []byte, error) {
	t, ok := l.f.Tensor(name)
	if !ok {
		return 0, nil, fmt.Errorf("tensor %q is missing", name)
	}
	if !slices.Equal(t.Dims, dims) {
		return 0, nil, fmt.Errorf("tensor %q has dimensions %v, want %v", name, t.Dims, dims)
	}
	l.seen = append(l.seen, name)
	raw, err := l.f.ReadRaw(l.r, t)
	return t.Type, raw, err
}

func (l *loader) matrix(name string, rows, cols int) (kernel.Matrix, error) {
	kind, raw, err := l.raw(name, uint64(cols), uint64(rows))
	if err != nil {
		return kernel.Matrix{}, err
	}
	m, err := kernel.Pack(kind, rows, cols, raw)
	if err != nil {
		return m, fmt.Errorf("tensor %q: %w", name, err)
	}
	return m, nil
}

func (l *loader) vector(name string, n int) ([]float32, error) {
	t, ok := l.f.Tensor(name)
	if !ok || !slices.Equal(t.Dims, []uint64{uint64(n)}) {
		return nil, fmt.Errorf("tensor %q of %d values is missing", name, n)
	}
	l.seen = append(l.seen, name)
	return l.f.ReadFloats(l.r, t)
}

// load reads all tensors. Experts are nil for a dense model.
func (l *loader) load(s *shape) (*weights, [][]*shard.Expert, error) {
	embed, ok := l.f.Tensor("token_embd.weight")
	if !ok || len(embed.Dims) != 2 || embed.Dims[1] > 1<<24 {
		return nil, nil, fmt.Errorf("tensor %q is missing", "token_embd.weight")
	}
	s.vocab = int(embed.Dims[1])
	w, err := l.ends(s)
	if err != nil {
		return nil, nil, err
	}
	var experts [][]*shard.Expert
	for i := range s.layers {
		b, err := l.block(s, i)
		if err != nil {
			return nil, nil, err
		}
		w.layers = append(w.layers, b)
		if s.experts == 0 {
			continue
		}
		row, err := l.experts(s, i)
		if err != nil {
			return nil, nil, err
		}
		experts = append(experts, row)
	}
	for _, t := range l.f.Tensors {
		if !slices.Contains(l.seen, t.Name) {
			return nil, nil, fmt.Errorf("tensor %q is not known to this runner; the llama runner knows more", t.Name)
		}
	}
	return w, experts, nil
}

// ends reads what comes before the first and after the last layer.
func (l *loader) ends(s *shape) (*weights, error) {
	w := &weights{}
	var err error
	if w.embed, err = l.matrix("token_embd.weight", s.vocab, s.width); err != nil {
		return nil, err
	}
	if w.outputNorm, err = l.vector("output_norm.weight", s.width); err != nil {
		return nil, err
	}
	w.output = w.embed // tied
	if _, ok := l.f.Tensor("output.weight"); ok {
		w.output, err = l.matrix("output.weight", s.vocab, s.width)
	}
	return w, err
}

func (l *loader) block(s *shape, i int) (b layer, err error) {
	name := func(part string) string { return fmt.Sprintf("blk.%d.%s.weight", i, part) }
	for _, v := range []struct {
		to   *[]float32
		name string
		n    int
		skip bool
	}{
		{&b.attnNorm, "attn_norm", s.width, false}, {&b.ffnNorm, "ffn_norm", s.width, false},
		{&b.qNorm, "attn_q_norm", s.dim, !s.queryNorm}, {&b.kNorm, "attn_k_norm", s.dim, !s.queryNorm},
	} {
		if v.skip {
			continue
		}
		if *v.to, err = l.vector(name(v.name), v.n); err != nil {
			return b, err
		}
	}
	queries, keys := s.heads*s.dim, s.kvHeads*s.dim
	for _, m := range []struct {
		to         *kernel.Matrix
		name       string
		rows, cols int
	}{
		{&b.q, "attn_q", queries, s.width}, {&b.k, "attn_k", keys, s.width},
		{&b.v, "attn_v", keys, s.width}, {&b.o, "attn_output", s.width, queries},
	} {
		if *m.to, err = l.matrix(name(m.name), m.rows, m.cols); err != nil {
			return b, err
		}
	}
	if s.experts > 0 {
		b.router, err = l.matrix(name("ffn_gate_inp"), s.experts, s.width)
		return b, err
	}
	b.ffn, err = l.dense(s, name)
	return b, err
}

func (l *loader) dense(s *shape, name func(string) string) (*shard.Expert, error) {
	gate, err := l.matrix(name("ffn_gate"), s.inner, s.width)
	if err != nil {
		return nil, err
	}
	up, err := l.matrix(name("ffn_up"), s.inner, s.width)
	if err != nil {
		return nil, err
	}
	down, err := l.matrix(name("ffn_down"), s.width, s.inner)
	if err != nil {
		return nil, err
	}
	return &shard.Expert{Gate: gate, Up: up, Down: down}, nil
}

// part is one of an expert's three matrices. All experts' lie in one tensor.
type part struct {
	name       string
	rows, cols int
}

func (s *shape) parts() [3]part {
	return [3]part{{"gate", s.inner, s.width}, {"up", s.inner, s.width}, {"down", s.width, s.inner}}
}

// experts reads the experts of a layer.
func (l *loader) experts(s *shape, i int) ([]*shard.Expert, error) {
	var all [3][]kernel.Matrix
	for p, part := range s.parts() {
		name := tensorOf(i, part)
		kind, raw, err := l.raw(name, uint64(part.cols), uint64(part.rows), uint64(s.experts))
		if err != nil {
			return nil, err
		}
		for one := range slices.Chunk(raw, len(raw)/s.experts) {
			m, err := kernel.Pack(kind, part.rows, part.cols, one)
			if err != nil {
				return nil, fmt.Errorf("tensor %q: %w", name, err)
			}
			all[p] = append(all[p], m)
		}
	}
	out := make([]*shard.Expert, s.experts)
	for e := range out {
		out[e] = shard.NewExpert(all[0][e], all[1][e], all[2][e])
	}
	return out, nil
}

func tensorOf(layer int, p part) string {
	return fmt.Sprintf("blk.%d.ffn_%s_exps.weight", layer, p.name)
}

// expert reads one expert of a layer.
func (l *loader) expert(s *shape, i, e int) (*shard.Expert, error) {
	var m [3]kernel.Matrix
	for p, part := range s.parts() {
		t, ok := l.f.Tensor(tensorOf(i, part))
		if !ok || !slices.Equal(t.Dims, []uint64{uint64(part.cols), uint64(part.rows), uint64(s.experts)}) {
			return nil, fmt.Errorf("tensor %q is not as it was", t.Name)
		}
		t.Dims = t.Dims[:2]
		size, _ := t.Size() // Dims are those of a tensor that was read
		t.Offset += uint64(e) * size
		raw, err := l.f.ReadRaw(l.r, t)
		if err != nil {
			return nil, err
		}
		if m[p], err = kernel.Pack(t.Type, part.rows, part.cols, raw); err != nil {
			return nil, err
		}
	}
	return shard.NewExpert(m[0], m[1], m[2]), nil
}

// quantised reports whether some product takes quantised rows.
func (w *weights) quantised(experts [][]*shard.Expert) bool {
	any := w.output.Quantised()
	for i := range w.layers {
		b := &w.layers[i]
		any = any || b.q.Quantised() || b.k.Quantised() || b.v.Quantised() || b.o.Quantised() || b.router.Quantised()
		if b.ffn != nil {
			any = any || b.ffn.Gate.Quantised() || b.ffn.Up.Quantised()
		}
	}
	for _, row := range experts {
		any = any || row[0].Gate.Quantised() || row[0].Up.Quantised()
	}
	return any
}
