package moe

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/moe/kernel"
	"github.com/weirhq/weir/engine/moe/pages"
	"github.com/weirhq/weir/engine/moe/vocab"
)

// Runner is one loaded model.
type Runner struct {
	shape     shape
	weights   *weights
	vocab     *vocab.Vocab
	prompt    func([]engine.Message, bool) (string, error) // of a bundled model
	chatML    bool
	info      engine.Info
	log       *slog.Logger
	quantised bool // rows of products are quantised

	cache *pages.Cache
	pool  *pool
	space *space
	steps uint64   // number of the step
	seen  []uint64 // by sequence, the last step it stood in
	rows  [][]float32
	stop  *atomic.Uint32

	moe *mixture // nil for a dense model
}

var (
	_ engine.Runner    = (*Runner)(nil)
	_ engine.Templater = (*Runner)(nil)
	_ engine.Stopper   = (*Runner)(nil)
)

// Info describes the model.
func (r *Runner) Info() engine.Info { return r.info }

// Tokenize turns text into tokens: see engine.Runner.
func (r *Runner) Tokenize(text string, special bool) ([]engine.Token, error) {
	return r.vocab.Tokenize(text, special), nil
}

// Piece appends the bytes of t to dst.
func (r *Runner) Piece(dst []byte, t engine.Token) []byte { return r.vocab.Piece(dst, t) }

// IsEnd reports whether t ends a generation.
func (r *Runner) IsEnd(t engine.Token) bool { return r.vocab.IsEnd(t) }

// Step runs one batch: see engine.Runner. It also fails with shard.ErrLost
// where no shard has a copy of an expert any more.
func (r *Runner) Step(spans []engine.Span) ([][]float32, error) {
	n, err := r.check(spans)
	if err != nil || n == 0 {
		return nil, err
	}
	for _, s := range spans {
		r.cache.Append(int(s.Seq), len(s.Tokens))
	}
	if err := r.compute(spans, n); err != nil {
		for _, s := range spans {
			r.cache.Forget(int(s.Seq), s.Pos)
		}
		return nil, err
	}
	return r.rows, nil
}

// StopAt has steps end between two layers: see engine.Stopper.
func (r *Runner) StopAt(flag *atomic.Uint32) { r.stop = flag }

// check refuses a step that is not possible and counts its tokens.
func (r *Runner) check(spans []engine.Span) (n int, err error) {
	r.steps++
	need := 0
	for _, s := range spans {
		if err := r.checkSpan(s); err != nil {
			return 0, err
		}
		r.seen[s.Seq] = r.steps
		n += len(s.Tokens)
		need += r.cache.Need(int(s.Seq), len(s.Tokens))
	}
	if n > r.info.MaxBatch {
		return 0, fmt.Errorf("step: %d tokens in a batch of at most %d", n, r.info.MaxBatch)
	}
	if used := r.cache.Used(); used+need > r.info.KVTokens {
		return 0, fmt.Errorf("step of %d tokens: %d of %d held: %w", n, used, r.info.KVTokens, engine.ErrKVFull)
	}
	return n, nil
}

func (r *Runner) checkSpan(s engine.Span) error {
	if err := r.checkSeq(s.Seq); err != nil {
		return err
	}
	if r.seen[s.Seq] == r.steps {
		return fmt.Errorf("step: sequence %d stands twice", s.Seq)
	}
	held := r.cache.Held(int(s.Seq))
	if len(s.Tokens) == 0 || s.Pos != held {
		return fmt.Errorf("step: sequence %d holds %d tokens: got %d tokens at %d", s.Seq, held, len(s.Tokens), s.Pos)
	}
	if s.Pos+len(s.Tokens) > r.info.Context {
		return fmt.Errorf("step: sequence %d would hold %d tokens: the context is %d", s.Seq, s.Pos+len(s.Tokens), r.info.Context)
	}
	for _, t := range s.Tokens {
		if t < 0 || int(t) >= r.info.Vocab {
			return fmt.Errorf("step: token %d is not in the vocabulary of %d", t, r.info.Vocab)
		}
	}
	return nil
}

func (r *Runner) checkSeq(s engine.Seq) error {
	if s < 0 || int(s) >= r.info.MaxSeqs {
		return fmt.Errorf("sequence %d: there are 0 to %d", s, r.info.MaxSeqs-1)
	}
	return nil
}

// Copy makes dst hold the first n tokens of src, in the same pages.
func (r *Runner) Copy(dst, src engine.Seq, n int) error {
	if err := r.checkSeq(dst); err != nil {
		return err
	}
	if err := r.checkSeq(src); err != nil {
		return err
	}
	if r.cache.Held(int(dst)) != 0 || dst == src {
		return fmt.Errorf("copy: sequence %d is not empty", dst)
	}
	if held := r.cache.Held(int(src)); n < 0 || n > held {
		return fmt.Errorf("copy: sequence %d holds %d tokens, not %d", src, held, n)
	}
	r.cache.Copy(int(dst), int(src), n)
	return nil
}

// Forget drops the tokens of s from position n on.
func (r *Runner) Forget(s engine.Seq, n int) error {
	if err := r.checkSeq(s); err != nil {
		return err
	}
	if n < 0 {
		return fmt.Errorf("forget: position %d", n)
	}
	r.cache.Forget(int(s), n)
	if n == 0 {
		r.TakeRerouted(s)
	}
	return nil
}

// Close ends the runner's threads and its balancing.
func (r *Runner) Close() error {
	if r.moe != nil {
		r.moe.close()
	}
	r.pool.close()
	return nil
}

// product is a task: a matrix product split by panels.
type product struct {
	m      *kernel.Matrix
	dst    []float32
	stride int
	x      *kernel.Input
	rows   []int32
	parts  int
}

func (p *product) do(_, i int) {
	n := p.m.Panels()
	p.m.MulPanels(p.dst, p.stride, p.x, p.rows, i*n/p.parts, (i+1)*n/p.parts)
}

// worthSharing is the multiplications from which waking threads pays: about
// 100 microseconds of work.
const worthSharing = 1 << 20

// mul multiplies, on all threads where that pays.
func (r *Runner) mul(m *kernel.Matrix, dst []float32, x *kernel.Input, rows []int32) {
	stride := m.PaddedRows()
	if t := r.pool.threads(); t > 1 && len(rows)*m.Rows*m.Cols >= worthSharing {
		r.space.product = product{m, dst, stride, x, rows, 2 * t}
		r.pool.run(&r.space.product, 2*t)
		return
	}
	m.Mul(dst, stride, x, rows)
}
