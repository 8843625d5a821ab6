package llama

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/weirhq/weir/engine"
)

// Runner is one model in one llama.cpp context.
type Runner struct {
	model llama.Model
	vocab llama.Vocab
	ctx   llama.Context
	mem   llama.Memory
	pool  llama.Threadpool
	info  engine.Info

	prompt func([]engine.Message, bool) (string, error) // nil: the file's template
	pieces pieces
	layout layout // of exported KV
	shared bool   // sequences share one KV buffer and can share cells

	batch   batch
	held    []int       // tokens each sequence holds
	rows    [][]float32 // logits rows of the last step
	steps   uint64      // number of the step
	seen    []uint64    // by sequence, the last step it stood in
	scratch []byte      // llama.cpp's state of a sequence, on its way in or out
	stop    *atomic.Uint32
}

var (
	_ engine.Runner    = (*Runner)(nil)
	_ engine.Templater = (*Runner)(nil)
)

// batch is a llama_batch with Go views of its arrays. Each token belongs to one
// sequence.
type batch struct {
	llama.Batch
	tokens []engine.Token
	pos    []llama.Pos
	seqs   []*llama.SeqId
	logits []int8
}

func newBatch(n int) batch {
	b := batch{Batch: llama.BatchInit(int32(n), 0, 1)}
	b.tokens = unsafe.Slice((*engine.Token)(b.Token), n)
	b.pos = unsafe.Slice(b.Pos, n)
	b.seqs = unsafe.Slice(b.SeqId, n)
	b.logits = unsafe.Slice(b.Logits, n)
	for i := range unsafe.Slice(b.NSeqId, n) {
		unsafe.Slice(b.NSeqId, n)[i] = 1
	}
	return b
}

// fill lays out spans and returns how many logits rows they ask for.
func (b *batch) fill(spans []engine.Span) (rows int) {
	n := 0
	for _, s := range spans {
		for i, t := range s.Tokens {
			b.tokens[n], b.pos[n], *b.seqs[n], b.logits[n] = t, llama.Pos(s.Pos+i), llama.SeqId(s.Seq), 0
			n++
		}
		if s.Logits {
			b.logits[n-1] = 1
			rows++
		}
	}
	b.NTokens = int32(n)
	return rows
}

// Info describes the model.
func (r *Runner) Info() engine.Info { return r.info }

// Step runs one batch: see engine.Runner.
func (r *Runner) Step(spans []engine.Span) ([][]float32, error) {
	if err := r.check(spans); err != nil {
		return nil, err
	}
	if len(spans) == 0 {
		return nil, nil
	}
	rows := r.batch.fill(spans)
	if rc, err := llama.Decode(r.ctx, r.batch.Batch); err != nil || rc != 0 {
		return nil, r.undo(spans, rc)
	}
	for _, s := range spans {
		r.held[s.Seq] += len(s.Tokens)
	}
	r.rows = r.rows[:0]
	if rows == 0 {
		return nil, llama.Synchronize(r.ctx)
	}
	// The rows lie in the order of the batch, which is the order of the spans.
	all, err := llama.GetLogits(r.ctx, rows, r.info.Vocab)
	if err != nil || len(all) != rows*r.info.Vocab {
		return nil, fmt.Errorf("llama.cpp gave no logits: %w", err)
	}
	for ; len(all) > 0; all = all[r.info.Vocab:] {
		r.rows = append(r.rows, all[:r.info.Vocab:r.info.Vocab])
	}
	return r.rows, nil
}

// check refuses what llama.cpp would refuse or worse.
func (r *Runner) check(spans []engine.Span) error {
	n := 0
	r.steps++
	for _, s := range spans {
		if err := r.checkSeq(s.Seq); err != nil {
			return err
		}
		if r.seen[s.Seq] == r.steps {
			return fmt.Errorf("step: sequence %d stands twice", s.Seq)
		}
		r.seen[s.Seq] = r.steps
		if len(s.Tokens) == 0 || s.Pos != r.held[s.Seq] {
			return fmt.Errorf("step: sequence %d holds %d tokens: got %d tokens at %d", s.Seq, r.held[s.Seq], len(s.Tokens), s.Pos)
		}
		if s.Pos+len(s.Tokens) > r.info.Context {
			return fmt.Errorf("step: sequence %d would hold %d tokens: the context is %d", s.Seq, s.Pos+len(s.Tokens), r.info.Context)
		}
		for _, t := range s.Tokens {
			if t < 0 || int(t) >= r.info.Vocab {
				return fmt.Errorf("step: token %d is not in the vocabulary of %d", t, r.info.Vocab)
			}
		}
		n += len(s.Tokens)
	}
	if n > r.info.MaxBatch {
		return fmt.Errorf("step: %d tokens in a batch of at most %d", n, r.info.MaxBatch)
	}
	return nil
}

func (r *Runner) checkSeq(s engine.Seq) error {
	if s < 0 || int(s) >= r.info.MaxSeqs {
		return fmt.Errorf("sequence %d: there are 0 to %d", s, r.info.MaxSeqs-1)
	}
	return nil
}

// undo removes what a failed step may have left and names the failure. 1 means
// that no room was found.
func (r *Runner) undo(spans []engine.Span, rc int32) error {
	for _, s := range spans {
		if err := r.cut(s.Seq, r.held[s.Seq]); err != nil {
			return err
		}
	}
	switch rc {
	case 1:
		return fmt.Errorf("step of %d tokens: %w", r.batch.NTokens, engine.ErrKVFull)
	case aborted:
		return engine.ErrStopped
	}
	return fmt.Errorf("llama_decode failed with code %d", rc)
}

// Copy makes dst hold the first n tokens of src. They share the cells where the
// KV buffer is shared.
func (r *Runner) Copy(dst, src engine.Seq, n int) error {
	if err := r.checkSeq(dst); err != nil {
		return err
	}
	if err := r.checkSeq(src); err != nil {
		return err
	}
	if r.held[dst] != 0 || dst == src {
		return fmt.Errorf("copy: sequence %d is not empty", dst)
	}
	if n < 0 || n > r.held[src] {
		return fmt.Errorf("copy: sequence %d holds %d tokens, not %d", src, r.held[src], n)
	}
	if n == 0 {
		return nil
	}
	if err := r.fork(dst, src); err != nil {
		return err
	}
	r.held[dst] = r.held[src]
	return r.Forget(dst, n)
}

// fork gives dst all that src holds.
func (r *Runner) fork(dst, src engine.Seq) error {
	if !r.shared {
		return r.copyState(dst, src)
	}
	return llama.MemorySeqCp(r.mem, llama.SeqId(src), llama.SeqId(dst), 0, -1)
}

// Forget drops the tokens of s from position n on.
func (r *Runner) Forget(s engine.Seq, n int) error {
	if err := r.checkSeq(s); err != nil {
		return err
	}
	if n < 0 {
		return fmt.Errorf("forget: position %d", n)
	}
	if n >= r.held[s] {
		return nil
	}
	if err := r.cut(s, n); err != nil {
		return err
	}
	r.held[s] = n
	return nil
}

// cut removes the cells of s from position n on.
func (r *Runner) cut(s engine.Seq, n int) error {
	ok, err := llama.MemorySeqRm(r.mem, llama.SeqId(s), llama.Pos(n), -1)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("model %s cannot drop a part of a sequence", r.info.Name)
	}
	return nil
}

// Close frees the model and its context.
func (r *Runner) Close() error {
	if r.ctx != 0 {
		if r.pool != 0 {
			llama.DetachThreadpool(r.ctx)
		}
		if err := llama.Free(r.ctx); err != nil {
			return err
		}
	}
	llama.ThreadpoolFree(r.pool)
	if r.batch.Token != nil {
		if err := llama.BatchFree(r.batch.Batch); err != nil {
			return err
		}
	}
	return llama.ModelFree(r.model)
}
