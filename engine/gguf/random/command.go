package random

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/internal/cli"
)

var types = map[string]gguf.Type{"f32": gguf.F32, "f16": gguf.F16, "q8_0": gguf.Q8_0}

// Command is 'weir bench-model'.
func Command() cli.Command {
	return cli.Command{Name: "bench-model", Short: "write a GGUF model with random weights, for benchmarks", Usage: "[flags] --out FILE", Run: run}
}

func run(_ context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("bench-model", pflag.ContinueOnError)
	arch := fs.String("arch", "llama", "llama or qwen3moe")
	params := fs.String("params", "100M", "number of parameters, about: 1M to 10B")
	ctx := fs.Int("ctx", 8192, "context length")
	kind := fs.String("type", "q8_0", "f32, f16 or q8_0")
	seed := fs.Uint64("seed", 1, "same seed, same file")
	out := fs.String("out", "", "file to write")
	if err := cli.ParseFlags(env, fs, "[flags] --out FILE", args); err != nil {
		return err
	}
	n, err := parseParams(*params)
	if err != nil {
		return cli.Usagef("--params: %v", err)
	}
	t, ok := types[*kind]
	switch {
	case *out == "":
		return cli.Usagef("--out is missing: see 'weir bench-model --help'")
	case fs.NArg() > 0:
		return cli.Usagef("unexpected argument %q: see 'weir bench-model --help'", fs.Arg(0))
	case !ok:
		return cli.Usagef("--type %q: want f32, f16 or q8_0", *kind)
	case *ctx < 1 || *ctx > 1<<20:
		return cli.Usagef("--ctx %d: want 1 to %d", *ctx, 1<<20)
	}
	written, err := WriteFile(*out, Options{Arch: *arch, Params: n, Context: *ctx, Type: t, Seed: *seed})
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "%s: %s, %.1fM parameters, context %d\n", *out, *arch, float64(written)/1e6, *ctx)
	return nil
}

// WriteFile writes the model to path, by rename, and returns its number of
// parameters.
func WriteFile(path string, o Options) (int64, error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".bench-model-*")
	if err != nil {
		return 0, fmt.Errorf("write model: %w", err)
	}
	defer os.Remove(tmp.Name())
	n, err := Write(tmp, o)
	if err := errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err != nil {
		return 0, fmt.Errorf("write model: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return 0, fmt.Errorf("write model: %w", err)
	}
	return n, nil
}

// parseParams reads a number such as 100M, 1.5B or 500000.
func parseParams(s string) (int64, error) {
	unit := 1.0
	for suffix, u := range map[string]float64{"K": 1e3, "M": 1e6, "B": 1e9} {
		if rest, ok := strings.CutSuffix(strings.ToUpper(s), suffix); ok {
			s, unit = rest, u
			break
		}
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !(x > 0 && x*unit < 1e15) {
		return 0, fmt.Errorf("%q is no number of parameters such as 100M", s)
	}
	return int64(x * unit), nil
}
