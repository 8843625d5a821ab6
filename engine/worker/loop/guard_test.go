package loop_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/engine/worker/runnertest"
)

// fragile panics in one of the calls beside Step.
type fragile struct {
	*runnertest.Runner
	in string
}

func (r fragile) breaks(call string) {
	if call == r.in {
		panic("made to")
	}
}

func (r fragile) Copy(dst, src engine.Seq, n int) error {
	r.breaks("copy")
	return r.Runner.Copy(dst, src, n)
}

func (r fragile) Forget(s engine.Seq, n int) error {
	r.breaks("forget")
	return r.Runner.Forget(s, n)
}

func (r fragile) ExportKV(dst []byte, s engine.Seq, from int) ([]byte, error) {
	r.breaks("export")
	return r.Runner.ExportKV(dst, s, from)
}

func (r fragile) ImportKV(s engine.Seq, parts ...[]byte) (int, error) {
	r.breaks("import")
	return r.Runner.ImportKV(s, parts...)
}

// TestPanicBesideSteps: a panic of any call ends the loop, and no request hangs.
func TestPanicBesideSteps(t *testing.T) {
	toy := runnertest.New(runnertest.Options{})
	start := strings.Repeat("the same start ", 10)
	long := prompt(toy, start+strings.Repeat("and then this ", 10))
	for _, tt := range []struct {
		call  string
		cache bool
		asks  []loop.Request
	}{
		{"forget", false, []loop.Request{{Prompt: prompt(toy, "x")}}},
		{"export", false, []loop.Request{{Prompt: prompt(toy, "x"), Export: true}}},
		{"import", false, []loop.Request{{Prompt: prompt(toy, "x"),
			Import: &loop.Handoff{Tokens: prompt(toy, "x"), Logits: make([]float32, toy.Info().Vocab), KV: [][]byte{make([]byte, 16)}}}}},
		{"copy", true, []loop.Request{{Prompt: long}, {Prompt: prompt(toy, start)}}},
	} {
		t.Run(tt.call, func(t *testing.T) {
			r := fragile{runnertest.New(runnertest.Options{}), tt.call}
			l, err := loop.New(loop.Options{Runner: r, Pieces: loop.NewPieces(r), Metrics: metrics.New("toy", r.Info().KVTokens),
				Log: slog.New(slog.DiscardHandler), PrefixCache: tt.cache})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- l.Run(context.Background()) }()
			for _, q := range tt.asks {
				q.MaxTokens = 2
				s, err := l.Submit(context.Background(), q)
				if err != nil {
					t.Fatal(err)
				}
				if b, _ := collect(s); b.Finish == "" {
					t.Error("no finish")
				}
			}
			if err := <-done; err == nil || !strings.Contains(err.Error(), "panicked") {
				t.Errorf("the loop ended with %v", err)
			}
		})
	}
}
