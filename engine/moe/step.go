package moe

import (
	"math"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/moe/kernel"
	"github.com/weirhq/weir/engine/moe/pages"
	"github.com/weirhq/weir/engine/moe/shard"
)

// space is what a step computes in. It is made once, for the largest batch.
type space struct {
	seq, pos []int32 // of each row
	prefill  []bool  // the row's span has more than one token
	all      []int32 // 0, 1, 2, ...
	out      []int32 // rows whose logits are asked for

	x       []float32     // residual stream, [row][width]
	in      *kernel.Input // normalised rows
	att     *kernel.Input // attention's results
	q, k, v []float32
	y       []float32 // a product's result, [row][padded width]
	kv      []float32 // one token's key and value
	last    *kernel.Input
	logits  []float32
	rotary  []kernel.Rotary
	weights [][]float32 // attention weights, by thread
	g, u    []float32   // of a dense feed-forward network, [row][padded inner]
	inner   *kernel.Input

	product product
	attend  attend
}

func newSpace(s shape, o Options, cache *pages.Cache) *space {
	n, wide := o.MaxBatch, func(x int) int { return (x + kernel.Lanes - 1) / kernel.Lanes * kernel.Lanes }
	outputs := min(o.MaxSeqs, o.MaxBatch)
	w := &space{
		seq: make([]int32, n), pos: make([]int32, n), prefill: make([]bool, n), all: make([]int32, n), out: make([]int32, 0, outputs),
		x: make([]float32, n*s.width), in: kernel.NewInput(n, s.width), att: kernel.NewInput(n, s.heads*s.dim),
		q: make([]float32, n*wide(s.heads*s.dim)), k: make([]float32, n*wide(s.kvHeads*s.dim)), v: make([]float32, n*wide(s.kvHeads*s.dim)),
		y: make([]float32, n*wide(s.width)), kv: make([]float32, 2*s.kvHeads*s.dim), last: kernel.NewInput(outputs, s.width), logits: make([]float32, outputs*wide(s.vocab)),
		rotary: kernel.NewRotary(o.Context, s.dim, s.ropeBase),
	}
	for i := range w.all {
		w.all[i] = int32(i)
	}
	if s.experts == 0 {
		w.g, w.u, w.inner = make([]float32, n*wide(s.inner)), make([]float32, n*wide(s.inner)), kernel.NewInput(n, s.inner)
	}
	for range o.Threads {
		w.weights = append(w.weights, cache.Weights())
	}
	return w
}

// compute runs the model on spans of n tokens. The cache has room for them.
func (r *Runner) compute(spans []engine.Span, n int) error {
	w, done := r.space, 0
	r.embed(spans)
	if r.moe != nil {
		r.moe.begin()
		defer func() { r.moe.end(w.prefill[:done]) }() // tokens of a step that is stopped are not counted
	}
	for l := range r.weights.layers {
		if r.stop.Load() != 0 {
			return engine.ErrStopped
		}
		b := &r.weights.layers[l]
		r.normed(b.attnNorm, n)
		r.attention(b, l, n)
		r.normed(b.ffnNorm, n)
		if r.moe == nil {
			r.dense(b.ffn, n)
			continue
		}
		if err := r.mix(b, l, n); err != nil {
			return err
		}
	}
	r.output()
	done = n
	return nil
}

// embed lays out the rows of a step.
func (r *Runner) embed(spans []engine.Span) {
	w, i := r.space, 0
	w.out = w.out[:0]
	for _, s := range spans {
		for j, t := range s.Tokens {
			w.seq[i], w.pos[i], w.prefill[i] = int32(s.Seq), int32(s.Pos+j), len(s.Tokens) > 1
			r.weights.embed.Row(w.x[i*r.shape.width:(i+1)*r.shape.width], int(t))
			i++
		}
		if s.Logits {
			w.out = append(w.out, int32(i-1))
		}
	}
}

// normed fills the input rows of the products that follow.
func (r *Runner) normed(norm []float32, n int) {
	w := r.space
	for i := range n {
		kernel.RMSNorm(w.in.Row(i), w.x[i*r.shape.width:(i+1)*r.shape.width], norm, r.shape.eps)
		if r.quantised {
			w.in.Quantise(i)
		}
	}
}

// attention adds a layer's attention to the residual stream.
func (r *Runner) attention(b *layer, l, n int) {
	w, s, rows := r.space, &r.shape, r.space.all[:n]
	r.mul(&b.q, w.q, w.in, rows)
	r.mul(&b.k, w.k, w.in, rows)
	r.mul(&b.v, w.v, w.in, rows)
	queries, keys := s.heads*s.dim, s.kvHeads*s.dim
	work := 0
	for i := range n {
		r.turn(w.q[i*queries:(i+1)*queries], b.qNorm, int(w.pos[i]))
		r.turn(w.k[i*keys:(i+1)*keys], b.kNorm, int(w.pos[i]))
		r.cache.Put(int(w.seq[i]), l, int(w.pos[i]), w.k[i*keys:(i+1)*keys], w.v[i*keys:(i+1)*keys])
		work += int(w.pos[i]) * queries
	}
	w.attend = attend{r, l}
	if r.pool.threads() > 1 && work >= worthSharing {
		r.pool.run(&w.attend, n)
	} else {
		for i := range n {
			w.attend.do(0, i)
		}
	}
	r.mul(&b.o, w.y, w.att, rows)
	kernel.Add(w.x[:n*s.width], w.y[:n*s.width])
}

// dense adds a dense feed-forward network to the residual stream.
func (r *Runner) dense(ffn *shard.Expert, n int) {
	w, rows, wide := r.space, r.space.all[:n], ffn.Gate.PaddedRows()
	r.mul(&ffn.Gate, w.g, w.in, rows)
	r.mul(&ffn.Up, w.u, w.in, rows)
	for i := range n {
		kernel.Gate(w.inner.Row(i), w.g[i*wide:(i+1)*wide], w.u[i*wide:(i+1)*wide])
		if r.quantised {
			w.inner.Quantise(i)
		}
	}
	r.mul(&ffn.Down, w.y, w.inner, rows)
	kernel.Add(w.x[:n*r.shape.width], w.y[:n*r.shape.width])
}

// turn normalises the heads of a query or key and rotates them.
func (r *Runner) turn(x, norm []float32, pos int) {
	s := &r.shape
	for ; len(x) > 0; x = x[s.dim:] {
		head := x[:s.dim]
		if norm != nil {
			kernel.RMSNorm(head, head, norm, s.eps)
		}
		if s.halves {
			r.space.rotary[pos].Halves(head)
		} else {
			r.space.rotary[pos].Adjacent(head)
		}
	}
}

// attend is a task: all heads of one row.
type attend struct {
	r     *Runner
	layer int
}

func (a *attend) do(thread, i int) {
	w, s := a.r.space, &a.r.shape
	scale := float32(1 / math.Sqrt(float64(s.dim)))
	group, dst, query := s.heads/s.kvHeads, w.att.Row(i), w.q[i*s.heads*s.dim:]
	for h := range s.heads {
		a.r.cache.Attend(dst[h*s.dim:(h+1)*s.dim], query[h*s.dim:(h+1)*s.dim], int(w.seq[i]), a.layer, h/group, int(w.pos[i])+1, scale, w.weights[thread])
	}
	if a.r.quantised {
		w.att.Quantise(i)
	}
}

// output computes the logits that were asked for.
func (r *Runner) output() {
	w, s := r.space, &r.shape
	r.rows = r.rows[:0]
	if len(w.out) == 0 {
		return
	}
	for i, row := range w.out {
		kernel.RMSNorm(w.last.Row(i), w.x[int(row)*s.width:(int(row)+1)*s.width], r.weights.outputNorm, s.eps)
		if r.quantised {
			w.last.Quantise(i)
		}
	}
	r.mul(&r.weights.output, w.logits, w.last, w.all[:len(w.out)])
	stride := r.weights.output.PaddedRows()
	for i := range w.out {
		r.rows = append(r.rows, w.logits[i*stride:i*stride+s.vocab:i*stride+s.vocab])
	}
}
