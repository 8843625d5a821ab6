package moe_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/engine/moe/evaluate"
	"github.com/weirhq/weir/engine/moe/kernel"
)

// open loads a model for a test and closes it afterwards.
func open(t testing.TB, o moe.Options) *moe.Runner {
	t.Helper()
	if o.CacheDir == "" {
		o.CacheDir = t.TempDir()
	}
	r, err := moe.Load(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// needsSpeed skips a test that would take minutes with plain kernels, unless
// WEIR_SOAK=1 asks for everything.
func needsSpeed(t *testing.T) {
	t.Helper()
	if !kernel.SIMD() && os.Getenv("WEIR_SOAK") == "" {
		t.Skip("slow without SIMD: build with GOEXPERIMENT=simd, or set WEIR_SOAK=1")
	}
}

// promptOf lays out a question for a model.
func promptOf(t testing.TB, r engine.Templater, question string) []engine.Token {
	t.Helper()
	tokens, err := r.ChatTokens([]engine.Message{{Role: "user", Content: question}}, false)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

// prompts are every n-th calibration prompt, all of them of one task unless it
// is empty.
func prompts(t testing.TB, r engine.Templater, every int, task string) [][]engine.Token {
	t.Helper()
	out, err := evaluate.Calibration(r, every, task)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// serve answers all prompts in full batches; between is called before each
// step.
func serve(t testing.TB, r engine.Runner, prompts [][]engine.Token, between func(step int)) []string {
	t.Helper()
	out, err := evaluate.Serve(r, prompts, between)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// answer is the greedy continuation of a prompt in sequence 0.
func answer(t testing.TB, r engine.Runner, prompt []engine.Token) string {
	t.Helper()
	out := enginetest.Text(r, enginetest.Greedy(t, r, 0, prompt, 100))
	if err := r.Forget(0, 0); err != nil {
		t.Fatal(err)
	}
	return out
}

// converted writes a copy of a bundled model with matrices of another type.
func converted(t testing.TB, name string, kind gguf.Type) string {
	t.Helper()
	data, err := models.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	src := bytes.NewReader(data)
	f, err := gguf.Read(src, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var out []gguf.Content
	for _, tensor := range f.Tensors {
		to := gguf.Content{Tensor: tensor}
		if tensor.Type != gguf.F32 {
			to.Type = kind
		}
		to.Data = func(w io.Writer) error {
			values, err := f.ReadFloats(src, tensor)
			if err != nil {
				return err
			}
			raw, err := gguf.AppendFloats(nil, to.Type, values)
			if err != nil {
				return err
			}
			_, err = w.Write(raw)
			return err
		}
		out = append(out, to)
	}
	path := filepath.Join(t.TempDir(), name+"-"+kind.String()+".gguf")
	h, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := gguf.Write(h, f.Meta, out); err != nil {
		t.Fatal(err)
	}
	return path
}
