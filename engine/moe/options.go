package moe

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/experts/plan"
)

// Options say which model to load and how much of the machine it may use.
// Zero values take the defaults.
type Options struct {
	// Path is a GGUF file. Empty: Name is a bundled model.
	Path string
	// Name is the name as served; default: the file's name without extension.
	Name string
	// CacheDir is where bundled models are unpacked; default: weir/models in the
	// user's cache folder.
	CacheDir string
	Threads  int // threads compute; default 1
	// Context is the most tokens of one sequence; default 2048 for bundled
	// models, else what the model was trained on, at most 8192.
	Context  int
	MaxSeqs  int // most sequences alive; default 16, at most 256
	MaxBatch int // most tokens in one step; default 512
	// KVTokens is the size of the KV cache in tokens, over all sequences;
	// default MaxSeqs*Context. Memory is taken when first needed.
	KVTokens int
	Logger   *slog.Logger // nil drops

	// Shards is how many shards hold the experts; default 4.
	Shards int
	// Slots is the experts per layer that fit into a shard; default so many that
	// half of the experts can have a replica.
	Slots int
	// Placement is where experts are at first; nil puts expert i mod E into
	// slot i. It fixes Shards and Slots.
	Placement *plan.Placement
	// Gate turns LASER-style routing on, with one entry per layer or one for
	// all. A token's result then depends on what else is routed.
	Gate []gate.Params
	// GateHalfLife is how many tokens halve the router's counters; default 256.
	GateHalfLife float64
	// Scores is shown the gate scores of each token in each layer, to calibrate
	// Gate on; it must not keep the slice.
	Scores func(layer int, scores []float32)
	// Balance moves experts by what is asked of them; nil leaves them alone.
	Balance *Balance
	// Copy carries weights from shard to shard; nil copies in memory.
	Copy func(dst, src []byte) error
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

// fit fills in defaults that depend on the model.
func (o *Options) fit(s shape, bundled bool) {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	if bundled {
		set(&o.Context, models.Context)
	}
	set(&o.Context, min(s.context, 8192))
	set(&o.MaxSeqs, 16)
	set(&o.MaxBatch, 512)
	set(&o.KVTokens, o.MaxSeqs*o.Context)
	set(&o.Threads, 1)
	set(&o.Shards, min(4, max(1, s.experts)))
	if o.Shards > 0 {
		set(&o.Slots, min(s.experts, (3*s.experts+2*o.Shards-1)/(2*o.Shards)))
	}
	if o.GateHalfLife == 0 {
		o.GateHalfLife = 256
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.KVTokens = min(o.KVTokens, o.MaxSeqs*o.Context)
}

// check refuses sizes that make no sense or too much memory.
func (o *Options) check() error {
	for _, v := range []struct {
		what       string
		n, lo, top int
	}{
		{"threads", o.Threads, 1, 512},
		{"sequences", o.MaxSeqs, 1, 256},
		{"tokens of context", o.Context, 1, 1 << 20},
		{"tokens in a batch", o.MaxBatch, 1, 1 << 14},
		{"KV tokens", o.KVTokens, o.Context, 1 << 28},
		{"shards", o.Shards, 1, 256},
	} {
		if v.n < v.lo || v.n > v.top {
			return fmt.Errorf("%d %s: want %d to %d", v.n, v.what, v.lo, v.top)
		}
	}
	return nil
}
