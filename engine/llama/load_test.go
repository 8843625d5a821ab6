package llama_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/models"
)

func TestFindLibrary(t *testing.T) {
	with := func(name string) string {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"libllama.so", "libllama.dylib", "llama.dll"} {
			if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	one, two, empty := with("one"), with("two"), t.TempDir()
	env := func(lib string) func(string) string {
		return func(key string) string { return map[string]string{"WEIR_LIB": lib, "HOME": empty}[key] }
	}
	for _, c := range []struct{ name, flag, env, want string }{
		{"flag", one, "", one},
		{"flag before environment", one, two, one},
		{"environment", "", two, two},
		{"flag decides alone", empty, two, ""},
		{"environment decides alone", "", empty, ""},
	} {
		got, err := llama.FindLibrary(c.flag, env(c.env))
		if got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
		if c.want == "" && (!errors.Is(err, engine.ErrLibrary) || !strings.Contains(err.Error(), "weir engine install")) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestWrongLibrary loads what is no llama.cpp: one clear line each time.
func TestWrongLibrary(t *testing.T) {
	llamatest.Library(t)
	text := t.TempDir()
	for _, f := range []string{"libllama.so", "libllama.dylib", "llama.dll"} {
		if err := os.WriteFile(filepath.Join(text, f), []byte("not a library"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, dir := range map[string]string{"missing": t.TempDir(), "not a library": text} {
		_, err := llama.Load(llama.Options{Name: "hub-edge", LibDir: dir, CacheDir: t.TempDir()})
		if !errors.Is(err, engine.ErrLibrary) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWrongModel(t *testing.T) {
	lib, dir := llamatest.Library(t), t.TempDir()
	good, err := models.Open("hub-edge")
	if err != nil {
		t.Fatal(err)
	}
	renamed := bytes.ReplaceAll(good, []byte("blk.0.attn_q.weight"), []byte("blk.0.attn_z.weight"))
	arch := bytes.Replace(good, []byte("\x05\x00\x00\x00\x00\x00\x00\x00llama"), []byte("\x05\x00\x00\x00\x00\x00\x00\x00lxxxx"), 1)
	for name, data := range map[string][]byte{
		"empty": {}, "text": []byte("#!/bin/sh\necho hello\n"), "cut": good[:len(good)/2], "head only": good[:200],
		"missing tensor": renamed, "unknown architecture": arch,
	} {
		path := filepath.Join(dir, "m.gguf")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := llama.Load(llama.Options{Path: path, LibDir: lib}); !errors.Is(err, engine.ErrModel) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, o := range []llama.Options{{Path: filepath.Join(dir, "none.gguf")}, {Path: dir}, {Name: "hub-none", CacheDir: dir}} {
		o.LibDir = lib
		if _, err := llama.Load(o); !errors.Is(err, engine.ErrModel) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, o := range []llama.Options{{MaxSeqs: 257}, {MaxSeqs: -1}, {MaxBatch: -1}, {Context: -5}, {Context: 1 << 20}, {Context: 512, KVTokens: 100}, {Threads: -1}} {
		o.Name, o.LibDir, o.CacheDir = "hub-edge", lib, dir
		if _, err := llama.Load(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestMostSequences(t *testing.T) {
	r := llamatest.Load(t, llama.Options{Name: "hub-edge", MaxSeqs: llama.MaxSeqs, Context: 64, MaxBatch: llama.MaxSeqs})
	spans := make([]engine.Span, llama.MaxSeqs)
	for s := range spans {
		spans[s] = engine.Span{Seq: engine.Seq(s), Tokens: []engine.Token{engine.Token(3 + s%200)}, Logits: true}
	}
	rows, err := r.Step(spans)
	if err != nil || len(rows) != llama.MaxSeqs {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for s := 200; s < len(rows); s++ { // the same token gives the same row
		for i := range rows[s] {
			if d := rows[s][i] - rows[s-200][i]; d > 0.01 || d < -0.01 {
				t.Fatalf("sequences %d and %d differ", s, s-200)
			}
		}
	}
}

// TestThreads runs with a thread pool; the pool outlives steps and is freed.
func TestThreads(t *testing.T) {
	one := llamatest.Load(t, llama.Options{Name: "hub-cloud", MaxSeqs: 1})
	two := llamatest.Load(t, llama.Options{Name: "hub-cloud", MaxSeqs: 1, Threads: 2})
	prompt := promptOf(t, one, "set the heating in the attic to 21")
	for range 3 {
		a, err := one.Step([]engine.Span{{Tokens: prompt, Logits: true}})
		if err != nil {
			t.Fatal(err)
		}
		b, err := two.Step([]engine.Span{{Tokens: prompt, Logits: true}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range a[0] {
			if d := a[0][i] - b[0][i]; d > 0.1 || d < -0.1 {
				t.Fatalf("logit %d: %v with one thread, %v with two", i, a[0][i], b[0][i])
			}
		}
		if err := errors.Join(one.Forget(0, 0), two.Forget(0, 0)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLogGoesToLogger(t *testing.T) {
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{Level: slog.LevelDebug}))
	llamatest.Load(t, llama.Options{Name: "hub-edge", MaxSeqs: 1, Logger: log})
	llamatest.Load(t, llama.Options{Name: "hub-edge", MaxSeqs: 1, Logger: slog.New(slog.DiscardHandler)})
	if !strings.Contains(buf.String(), "from=llama.cpp") {
		t.Error("llama.cpp logged nothing at debug level")
	}
	if log.Enabled(context.Background(), slog.LevelDebug) && strings.Contains(buf.String(), "level=INFO") {
		t.Error("llama.cpp's log is above debug level")
	}
}
