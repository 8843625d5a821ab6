package worker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/config"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/telemetry"
)

// Command is "weir worker".
func Command() cli.Command {
	return cli.Command{Name: "worker", Short: "serve one model on this machine", Usage: "--model FILE|NAME [flags]", Run: runCommand}
}

func runCommand(ctx context.Context, env cli.Env, args []string) error {
	var c Config
	fs := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	loader := config.New("worker", &c)
	loader.Flags(fs)
	if err := cli.ParseFlags(env, fs, "--model FILE|NAME [flags]", args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return cli.Usagef("unexpected argument %q: see 'weir worker --help'", fs.Arg(0))
	}
	if err := loader.Load(env.Getenv); err != nil {
		return err
	}
	log, err := telemetry.NewLogger(env.Stderr, "worker", c.LogLevel)
	if err != nil {
		return err
	}
	ctx, stop := proc.Main(ctx)
	defer stop()
	tel, err := telemetry.New(ctx, telemetry.Options{Role: "worker", Name: c.Name, Endpoint: c.OTLPEndpoint})
	if err != nil {
		return err
	}
	err = Run(ctx, Options{Config: c, Log: log, Tracer: tel.Tracer, Load: func() (engine.Runner, error) {
		lib, err := llama.FindLibrary(c.Lib, env.Getenv)
		if err != nil {
			return nil, err
		}
		o, err := c.llamaOptions(lib)
		if err != nil {
			return nil, err
		}
		o.Logger = log
		r, err := llama.Load(o)
		if err != nil {
			return nil, err // not r: a nil pointer is not a nil interface
		}
		return r, nil
	}})
	return errors.Join(err, tel.Shutdown())
}

// llamaOptions turns the configuration into the runner's.
func (c *Config) llamaOptions(lib string) (llama.Options, error) {
	o := llama.Options{Path: c.Model, Name: c.ServedModelName, CacheDir: c.CacheDir, LibDir: lib, Threads: c.Threads,
		Context: c.Context, MaxSeqs: c.MaxSeqs, MaxBatch: c.MaxBatch, KVTokens: c.KVTokens}
	if o.Threads == 0 {
		o.Threads = max(1, runtime.NumCPU()/2)
	}
	if models.Bundled(c.Model) {
		// A file of that name in the working folder does not shadow the bundled model.
		var err error
		if o.Path, err = models.Path(c.Model, c.cacheDir()); err != nil {
			return o, err
		}
		if o.Name == "" {
			o.Name = c.Model
		}
		if o.Context == 0 {
			o.Context = models.Context
		}
	}
	if o.KVTokens == 0 && o.Context > 0 {
		o.KVTokens = max(o.Context, min(o.MaxSeqs*o.Context, maxDefaultKV))
	}
	return o, nil
}

// maxDefaultKV bounds the memory that a worker takes unasked, in tokens: 96 MiB
// for hub-cloud.
const maxDefaultKV = 32768

func (c *Config) cacheDir() string {
	if c.CacheDir != "" {
		return c.CacheDir
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "weir", "models")
	}
	return filepath.Join(os.TempDir(), "weir-models")
}
