package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/experts/load"
)

// Runners are what a worker may compute with. Auto is moe for a mixture of
// experts that it can compute where it has vector kernels, else llama: a dense
// model has no experts to balance, and plain kernels are slow.
var Runners = []string{runnerAuto, runnerLlama, runnerMoE}

const (
	runnerAuto  = "auto"
	runnerLlama = "llama"
	runnerMoE   = "moe"
)

// modelFile is a model with the sizes that any runner gets.
type modelFile struct {
	path, name        string
	context, kvTokens int
	threads           int
}

// maxDefaultKV bounds the memory that a worker takes unasked, in tokens: 96 MiB
// for hub-cloud.
const maxDefaultKV = 32768

func (c *Config) modelFile() (modelFile, error) {
	m := modelFile{path: c.Model, name: c.ServedModelName, context: c.Context, kvTokens: c.KVTokens, threads: c.Threads}
	if m.threads == 0 {
		m.threads = max(1, runtime.NumCPU()/2)
	}
	if models.Bundled(c.Model) {
		// A file of that name in the working folder does not shadow the bundled model.
		var err error
		if m.path, err = models.Path(c.Model, c.cacheDir()); err != nil {
			return m, err
		}
		if m.name == "" {
			m.name = c.Model
		}
		if m.context == 0 {
			m.context = models.Context
		}
	} else if _, err := os.Stat(c.Model); errors.Is(err, os.ErrNotExist) {
		return m, fmt.Errorf("model %q: there is no such file, and the bundled models are %s", c.Model, strings.Join(models.Names(), ", "))
	}
	if m.kvTokens == 0 && m.context > 0 {
		m.kvTokens = max(m.context, min(c.MaxSeqs*m.context, maxDefaultKV))
	}
	return m, nil
}

func (c *Config) cacheDir() string {
	if c.CacheDir != "" {
		return c.CacheDir
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "weir", "models")
	}
	return filepath.Join(os.TempDir(), "weir-models")
}

// loadRunner loads the model with the runner that the configuration asks for.
func (c *Config) loadRunner(log *slog.Logger, getenv func(string) string) (engine.Runner, error) {
	m, err := c.modelFile()
	if err != nil {
		return nil, err
	}
	kind, experts := c.Runner, 0
	if kind != runnerLlama {
		experts, err = moe.Inspect(m.path)
		if kind, err = choose(kind, experts, err, moe.Fast()); err != nil {
			return nil, err
		}
	}
	var r engine.Runner
	if kind == runnerMoE {
		r, err = c.loadMoE(m, log)
	} else {
		r, err = c.loadLlama(m, log, getenv)
	}
	if err != nil {
		return nil, err // alone: a wrong file is one line
	}
	log.Info("runner chosen", "runner", kind, "asked_for", c.Runner, "experts", experts, "simd", moe.Fast())
	return r, nil
}

// choose names the runner. Unfit is why the moe runner cannot compute the
// model, nil where it can.
func choose(asked string, experts int, unfit error, fast bool) (string, error) {
	switch {
	case asked == runnerMoE && unfit != nil:
		return "", fmt.Errorf("runner moe: %w: use --runner llama", unfit)
	case asked == runnerMoE, asked == runnerAuto && unfit == nil && experts > 0 && fast:
		return runnerMoE, nil
	}
	return runnerLlama, nil
}

func (c *Config) loadLlama(m modelFile, log *slog.Logger, getenv func(string) string) (engine.Runner, error) {
	lib, err := llama.FindLibrary(c.Lib, getenv)
	if err != nil {
		return nil, err
	}
	r, err := llama.Load(llama.Options{Path: m.path, Name: m.name, CacheDir: c.CacheDir, LibDir: lib, Threads: m.threads,
		Context: m.context, MaxSeqs: c.MaxSeqs, MaxBatch: c.MaxBatch, KVTokens: m.kvTokens, Logger: log})
	if err != nil {
		return nil, err // not r: a nil pointer is not a nil interface
	}
	return r, nil
}

func (c *Config) loadMoE(m modelFile, log *slog.Logger) (engine.Runner, error) {
	o := moe.Options{Path: m.path, Name: m.name, Threads: m.threads, Context: m.context, MaxSeqs: c.MaxSeqs, MaxBatch: c.MaxBatch,
		KVTokens: m.kvTokens, Logger: log, Shards: c.Experts.Shards, Slots: c.Experts.Slots,
		Balance: c.Experts.balance(c.Role), Gate: c.Experts.gate()}
	r, err := moe.Load(o)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// balance is the loop of a worker of the given role, nil where experts stay.
func (e *Experts) balance(role string) *moe.Balance {
	if e.Fixed {
		return nil
	}
	b := moe.DefaultBalance()
	switch role {
	case "prefill":
		b.Phase = load.Prefill
	case "decode":
		b.Phase = load.Decode
	}
	if e.Window > 0 {
		b.Window = e.Window
	}
	if e.Start > 0 {
		b.Config.Start = e.Start
	}
	if e.Moves > 0 {
		b.Config.Moves = e.Moves
	}
	if len(e.Routing) > 0 {
		b.Config.Routed = 1 // flexible load is routing's, replicas are for the rest
	}
	return &b
}
