package random

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/internal/cli"
)

func TestFit(t *testing.T) {
	for _, arch := range []string{"llama", "qwen3moe"} {
		for _, want := range []int64{1e6, 3e6, 25e6, 100e6, 1e9, 7e9} {
			s, err := fit(arch, want, 259)
			if err != nil {
				t.Fatal(err)
			}
			got := s.layerParams()*int64(s.layers) + int64(2*259*s.width)
			if d := math.Abs(float64(got)/float64(want) - 1); d > 0.15 {
				t.Errorf("%s %d: %+v has %d parameters, %.0f %% off", arch, want, s, got, 100*d)
			}
			if s.heads%s.kvHeads != 0 || s.ff%32 != 0 || s.layers < 2 {
				t.Errorf("%s %d: shape %+v", arch, want, s)
			}
		}
	}
	for _, bad := range []int64{0, 10, 1e12} {
		if _, err := fit("llama", bad, 259); err == nil {
			t.Errorf("%d parameters: no error", bad)
		}
	}
	if _, err := fit("mamba", 1e8, 259); err == nil {
		t.Error("unknown architecture: no error")
	}
}

func TestSameSeedSameFile(t *testing.T) {
	var files [3]bytes.Buffer
	for i, seed := range []uint64{1, 1, 2} {
		if _, err := Write(&files[i], Options{Arch: "llama", Params: 1e6, Context: 128, Type: gguf.F16, Seed: seed}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(files[0].Bytes(), files[1].Bytes()) || bytes.Equal(files[0].Bytes(), files[2].Bytes()) {
		t.Error("the seed does not decide the file")
	}
}

// TestLlamaRunsIt loads each architecture and type, and runs a step.
func TestLlamaRunsIt(t *testing.T) {
	for _, arch := range []string{"llama", "qwen3moe"} {
		for _, kind := range []gguf.Type{gguf.F32, gguf.F16, gguf.Q8_0} {
			path := filepath.Join(t.TempDir(), "m.gguf")
			n, err := WriteFile(path, Options{Arch: arch, Params: 2e6, Context: 8192, Type: kind, Seed: 3})
			if err != nil {
				t.Fatal(err)
			}
			r := llamatest.Load(t, llama.Options{Path: path, MaxSeqs: 1, Context: 256})
			if info := r.Info(); info.Params != n || info.Arch != arch || info.Name != "m" || info.Vocab != 259 {
				t.Errorf("%s %s: %+v, want %d parameters", arch, kind, info, n)
			}
			prompt, err := r.Tokenize("hello", false)
			if err != nil {
				t.Fatal(err)
			}
			if out := enginetest.Greedy(t, r, 0, prompt, 5); len(out) == 0 {
				t.Logf("%s %s: the first token ends", arch, kind)
			}
			for _, x := range enginetest.Last(t, r, 0, heldAfter(t, r, prompt), prompt) {
				if x != x || x > 1e4 || x < -1e4 {
					t.Fatalf("%s %s: logit %v", arch, kind, x)
				}
			}
		}
	}
}

// heldAfter empties the sequence and fills it with prompt.
func heldAfter(t *testing.T, r engine.Runner, prompt []engine.Token) int {
	if err := r.Forget(0, 0); err != nil {
		t.Fatal(err)
	}
	enginetest.Step(t, r, engine.Span{Tokens: prompt})
	return len(prompt)
}

func TestCommand(t *testing.T) {
	out := filepath.Join(t.TempDir(), "m.gguf")
	var stdout bytes.Buffer
	env := cli.Env{Stdout: &stdout, Stderr: io.Discard, Getenv: os.Getenv}
	if err := run(context.Background(), env, []string{"--params", "1M", "--ctx", "512", "--out", out}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(out); err != nil || info.Size() < 500_000 || !strings.Contains(stdout.String(), "context 512") {
		t.Errorf("%v, %v: %s", info, err, &stdout)
	}
	for _, bad := range [][]string{{}, {"--out", "x", "--params", "many"}, {"--out", "x", "--type", "q4"}, {"--out", "x", "--ctx", "0"}, {"--out", "x", "y"}} {
		if err := run(context.Background(), env, bad); !errors.As(err, new(cli.UsageError)) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if err := run(context.Background(), env, []string{"--out", filepath.Join(out, "below")}); err == nil {
		t.Error("a file as folder: no error")
	}
}

func TestParseParams(t *testing.T) {
	for in, want := range map[string]int64{"100M": 1e8, "1.5b": 1.5e9, "500K": 5e5, "12": 12} {
		if got, err := parseParams(in); got != want || err != nil {
			t.Errorf("%s: %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "M", "-1M", "1e99", "nan"} {
		if got, err := parseParams(in); err == nil {
			t.Errorf("%s: %d", in, got)
		}
	}
}
