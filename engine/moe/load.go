package moe

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/moe/kernel"
	"github.com/weirhq/weir/engine/moe/pages"
	"github.com/weirhq/weir/engine/moe/shard"
	"github.com/weirhq/weir/engine/moe/vocab"
	"github.com/weirhq/weir/experts/plan"
)

// version is part of the fingerprint: it changes when the same weights give
// other keys and values.
const version = "1"

// file is what a model file holds.
type file struct {
	shape   shape
	weights *weights
	experts [][]*shard.Expert
	vocab   *vocab.Vocab
	sum     string // SHA-256, hex
	chatML  bool   // chats are laid out as ChatML
}

// Load loads a model. The error wraps engine.ErrModel where the file is the
// cause.
func Load(o Options) (*Runner, error) {
	if err := o.resolve(); err != nil {
		return nil, err
	}
	f, err := readFile(o.Path)
	if err != nil {
		return nil, modelError(o.Path, err)
	}
	prompt := promptOf(f.sum)
	o.fit(f.shape, prompt != nil)
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("model %s: %w", o.Name, err)
	}
	r, err := newRunner(o, f)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", o.Name, err)
	}
	r.prompt = prompt
	o.Logger.Info("model loaded", "model", o.Name, "arch", f.shape.arch, "params", f.shape.params, "threads", o.Threads,
		"simd", kernel.SIMD(), "shards", len(r.Experts().Shards))
	return r, nil
}

// readFile reads and checks a model file.
func readFile(path string) (*file, error) {
	h, size, err := open(path)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return read(h, size)
}

// read takes a model from a file's bytes; it trusts no number in them.
func read(h io.ReaderAt, size int64) (*file, error) {
	head, err := gguf.Read(h, size)
	if err != nil {
		return nil, err
	}
	out := &file{chatML: chatML(head)}
	if out.sum, err = sumOf(h, size); err != nil {
		return nil, err
	}
	if out.shape, err = readShape(head); err != nil {
		return nil, err
	}
	if out.vocab, err = vocab.Read(head); err != nil {
		return nil, err
	}
	l := &loader{f: head, r: h}
	if out.weights, out.experts, err = l.load(&out.shape); err != nil {
		return nil, err
	}
	if out.vocab.Len() != out.shape.vocab {
		return nil, fmt.Errorf("%d tokens beside %d embeddings", out.vocab.Len(), out.shape.vocab)
	}
	return out, nil
}

// promptOf returns the chat template of a bundled model, known by its hash.
func promptOf(sum string) func([]engine.Message, bool) (string, error) {
	for _, name := range models.Names() {
		if s, err := models.SHA256(name); err == nil && s == sum {
			return models.Prompt
		}
	}
	return nil
}

func newRunner(o Options, f *file) (*Runner, error) {
	s := f.shape
	r := &Runner{shape: s, weights: f.weights, vocab: f.vocab, chatML: f.chatML, log: o.Logger, quantised: f.weights.quantised(f.experts),
		stop: new(atomic.Uint32)}
	cache := pages.Shape{Layers: s.layers, Heads: s.kvHeads, Dim: s.dim, Seqs: o.MaxSeqs, Context: o.Context, Tokens: o.KVTokens}
	r.info = engine.Info{
		Name: o.Name, Arch: s.arch, Layers: s.layers, Vocab: s.vocab,
		Context: o.Context, MaxSeqs: o.MaxSeqs, MaxBatch: o.MaxBatch, KVTokens: o.KVTokens,
		KVBytesPerToken: 4 * cache.TokenValues(), Params: s.params, BOS: f.vocab.BOS, EOS: f.vocab.EOS,
		Fingerprint: engine.Fingerprint{Weights: f.sum, Runner: "weir-moe/" + version, KV: "f32/f32"},
	}
	r.cache = pages.New(cache)
	r.seen = make([]uint64, o.MaxSeqs)
	r.pool = newPool(o.Threads)
	r.space = newSpace(s, o, r.cache)
	if s.experts == 0 {
		return r, nil
	}
	if err := r.mixture(o, f); err != nil {
		r.pool.close()
		return nil, err
	}
	return r, nil
}

// placement is where experts are at first.
func (o *Options) placement(s shape) (plan.Placement, error) {
	if o.Placement != nil {
		return *o.Placement, nil
	}
	fleet := plan.Uniform(o.Shards, o.Slots)
	if err := fleet.Validate(s.experts); err != nil {
		return plan.Placement{}, fmt.Errorf("%d shards of %d slots for %d experts: %w", o.Shards, o.Slots, s.experts, err)
	}
	return plan.Trivial(s.layers, s.experts, fleet), nil
}
