package llama

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/models"
)

// MaxSeqs is llama.cpp's bound on sequences in one context (LLAMA_MAX_SEQ).
const MaxSeqs = 256

// maxThreads is ggml's bound (GGML_MAX_N_THREADS).
const maxThreads = 512

// Options say which model to load and how much of the machine it may use.
// Zero values take the defaults.
type Options struct {
	// Path is a GGUF file. Empty: Name is a bundled model, unpacked in CacheDir.
	Path string
	// Name is the name as served; default: the file's name without extension.
	Name string
	// CacheDir is where bundled models are unpacked; default: weir/models in the
	// user's cache folder.
	CacheDir string
	// LibDir is the folder of llama.cpp's libraries, from FindLibrary.
	LibDir string
	// Threads compute; default 1. ggml's threads spin at barriers, so the sum
	// over all runners of a machine must stay within its idle cores.
	Threads int
	// Context is the most tokens of one sequence; default 2048 for bundled
	// models, else what the model was trained on, at most 8192.
	Context int
	MaxSeqs int // most sequences alive; default 16, at most 256
	// MaxBatch is the most tokens in one step; default 512.
	MaxBatch int
	// KVTokens is the size of the KV cache in tokens, over all sequences. The
	// default, MaxSeqs*Context, gives each sequence a buffer of its own: attention
	// looks at that sequence only, which is about twice as fast with many, but
	// Copy copies. Fewer make one shared buffer: any sequence may grow to Context
	// while there is room, and Copy shares cells.
	KVTokens int
	// Logger receives llama.cpp's own log at debug level; nil drops it. It is
	// one per process: the last Load wins.
	Logger *slog.Logger
}

// Load loads a model. The error wraps engine.ErrLibrary or engine.ErrModel
// where one of them is the cause.
func Load(o Options) (*Runner, error) {
	version, err := LoadLibrary(o.LibDir)
	if err != nil {
		return nil, err
	}
	if o.Logger != nil {
		logger.Store(o.Logger)
	}
	if err := o.resolve(); err != nil {
		return nil, err
	}
	sum, err := inspect(o.Path)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", engine.ErrModel, o.Path, err)
	}
	params := llama.ModelDefaultParams()
	model, err := llama.ModelLoadFromFile(o.Path, params)
	if err != nil {
		return nil, fmt.Errorf("%w: llama.cpp refuses %s", engine.ErrModel, o.Path)
	}
	r := &Runner{model: model, vocab: llama.ModelGetVocab(model)}
	r.prompt = promptOf(sum)
	if err := r.open(o, sum, version); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// resolve turns a bundled name into a file.
func (o *Options) resolve() error {
	if o.Path != "" {
		if o.Name == "" {
			o.Name = strings.TrimSuffix(filepath.Base(o.Path), filepath.Ext(o.Path))
		}
		return nil
	}
	if o.CacheDir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("no folder to unpack models in: %w", err)
		}
		o.CacheDir = filepath.Join(cache, "weir", "models")
	}
	path, err := models.Path(o.Name, o.CacheDir)
	if err != nil {
		return fmt.Errorf("%w: %w", engine.ErrModel, err)
	}
	o.Path = path
	return nil
}

// inspect checks that path is a GGUF file with all its tensors, because
// llama.cpp reads what a head promises, and returns its SHA-256.
func inspect(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if _, err := gguf.Read(f, st.Size()); err != nil {
		return "", err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
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

// open creates the context and everything that depends on it.
func (r *Runner) open(o Options, sum, version string) error {
	r.fit(&o)
	o.KVTokens = min(o.KVTokens, o.MaxSeqs*o.Context)
	r.shared = o.shared()
	if err := o.check(); err != nil {
		return fmt.Errorf("model %s: %w", o.Name, err)
	}
	if most := r.mostContext(); o.Context > most {
		return fmt.Errorf("%w: %s has a context of at most %d tokens: %d are too many", engine.ErrModel, o.Name, most, o.Context)
	}
	ctx, err := llama.InitFromModel(r.model, contextParams(o))
	if err != nil {
		return fmt.Errorf("%w: no context of %d KV tokens for %s: not enough memory, or not a text model", engine.ErrModel, o.KVTokens, o.Path)
	}
	r.ctx = ctx
	if r.mem, err = llama.GetMemory(ctx); err != nil || r.mem == 0 {
		return fmt.Errorf("%w: %s keeps no KV cache", engine.ErrModel, o.Path)
	}
	if err := r.attachThreads(o.Threads); err != nil {
		return err
	}
	r.held, r.seen = make([]int, o.MaxSeqs), make([]uint64, o.MaxSeqs)
	r.rows = make([][]float32, 0, o.MaxSeqs)
	r.batch = newBatch(o.MaxBatch)
	r.readVocab()
	r.info = r.describe(o, sum, version)
	return r.learnLayout()
}

// fit fills in defaults that depend on the model.
func (r *Runner) fit(o *Options) {
	if o.Context == 0 {
		o.Context = min(int(llama.ModelNCtxTrain(r.model)), 8192)
		if r.prompt != nil {
			o.Context = models.Context
		}
	}
	if o.MaxSeqs == 0 {
		o.MaxSeqs = 16
	}
	if o.MaxBatch == 0 {
		o.MaxBatch = 512
	}
	if o.KVTokens == 0 {
		o.KVTokens = o.MaxSeqs * o.Context
	}
	if o.Threads == 0 {
		o.Threads = 1
	}
}

// mostContext is what the model was trained for, and for bundled models what
// they are known to bear.
func (r *Runner) mostContext() int {
	trained := int(llama.ModelNCtxTrain(r.model))
	if r.prompt != nil {
		return max(trained, models.Context)
	}
	return trained
}

// check refuses sizes that llama.cpp would take for something else.
func (o Options) check() error {
	for _, v := range []struct {
		what       string
		n, lo, top int
	}{
		{"threads", o.Threads, 1, maxThreads},
		{"sequences", o.MaxSeqs, 1, MaxSeqs},
		{"tokens of context", o.Context, 1, math.MaxInt32 / MaxSeqs},
		{"tokens in a batch", o.MaxBatch, 1, 1 << 16},
		{"KV tokens", o.KVTokens, o.Context, math.MaxInt32},
	} {
		if v.n < v.lo || v.n > v.top {
			return fmt.Errorf("%d %s: want %d to %d", v.n, v.what, v.lo, v.top)
		}
	}
	return nil
}

// shared tells whether the sequences share one KV buffer.
func (o Options) shared() bool { return o.KVTokens < o.MaxSeqs*o.Context }

func contextParams(o Options) llama.ContextParams {
	p := llama.ContextDefaultParams()
	p.NCtx, p.KVUnified = uint32(o.KVTokens), 0
	if o.shared() {
		p.KVUnified = 1
	}
	p.NBatch = uint32(o.MaxBatch)
	p.NUbatch = min(p.NBatch, 512)
	p.NSeqMax = uint32(o.MaxSeqs)
	p.NOutputsMax = uint32(min(o.MaxSeqs, o.MaxBatch)) // Step asks for one row per sequence at most
	p.NOutputsMaxPerSeq = 1
	p.NThreads, p.NThreadsBatch = int32(o.Threads), int32(o.Threads)
	p.NoPerf = 1
	return p
}

// attachThreads gives the context threads that sleep between steps instead of
// polling for work, and that are not made anew for each step.
func (r *Runner) attachThreads(n int) error {
	if n == 1 {
		return nil
	}
	p := llama.ThreadpoolParamsDefault(int32(n))
	p.Poll = 0
	pool, err := llama.ThreadpoolNew(&p)
	if err != nil {
		return fmt.Errorf("%w: %w", engine.ErrLibrary, err)
	}
	r.pool = pool
	llama.AttachThreadpool(r.ctx, uintptr(pool), uintptr(pool))
	return nil
}

// describe collects what does not change during the runner's life.
func (r *Runner) describe(o Options, sum, version string) engine.Info {
	arch, _ := llama.ModelMetaValStr(r.model, "general.architecture")
	info := engine.Info{
		Name: o.Name, Arch: arch,
		Layers: int(llama.ModelNLayer(r.model)), Vocab: int(llama.VocabNTokens(r.vocab)),
		Context: o.Context, MaxSeqs: o.MaxSeqs, MaxBatch: o.MaxBatch, KVTokens: o.KVTokens,
		Params: int64(llama.ModelNParams(r.model)), SharedKV: r.shared,
		BOS: -1, EOS: engine.Token(llama.VocabEOS(r.vocab)),
		Fingerprint: engine.Fingerprint{Weights: sum, Runner: "llama.cpp/" + version},
	}
	if llama.VocabGetAddBOS(r.vocab) {
		info.BOS = engine.Token(llama.VocabBOS(r.vocab))
	}
	return info
}
