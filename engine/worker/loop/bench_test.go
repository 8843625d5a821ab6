package loop_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/engine/worker/runnertest"
)

// instant answers each step at once with the same row, so that what is measured
// is the loop alone.
type instant struct {
	*runnertest.Runner
	info engine.Info
	row  []float32
	rows [][]float32
}

func (r *instant) Info() engine.Info { return r.info }

func (r *instant) Step(spans []engine.Span) ([][]float32, error) {
	r.rows = r.rows[:0]
	for _, s := range spans {
		if s.Logits {
			r.rows = append(r.rows, r.row)
		}
	}
	return r.rows, nil
}

// BenchmarkLoop is the loop's own time per generated token, with sampling,
// metrics and delivery to streams that are read at the end.
func BenchmarkLoop(b *testing.B) {
	for _, bb := range []struct {
		name string
		p    sample.Params
		top  int
	}{{"greedy", sample.Params{}, -1}, {"sampled", sample.Params{Temperature: 0.8, TopK: 40, TopP: 0.95}, -1}, {"logprobs", sample.Params{}, 5}} {
		for _, n := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/batch=%d", bb.name, n), func(b *testing.B) { benchLoop(b, n, bb.p, bb.top) })
		}
	}
}

func benchLoop(b *testing.B, n int, p sample.Params, top int) {
	base := runnertest.New(runnertest.Options{MaxSeqs: 32})
	info := base.Info()
	info.Context, info.KVTokens = b.N+10, 32*(b.N+10)
	r := &instant{Runner: base, info: info, row: make([]float32, info.Vocab)}
	for i := range r.row {
		r.row[i] = float32(i*7919%259) / 30
	}
	l, err := loop.New(loop.Options{Runner: r, Pieces: loop.NewPieces(r), Metrics: metrics.New("m", info.KVTokens), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	streams := make([]*loop.Stream, n)
	for i := range streams {
		if streams[i], err = l.Submit(ctx, loop.Request{Prompt: []engine.Token{5}, MaxTokens: b.N/n + 1, IgnoreEOS: true, Sample: p, Logprobs: top >= 0, Top: max(top, 0)}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	go func() { done <- l.Run(ctx) }()
	for _, s := range streams {
		if _, err := collect(s); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	cancel()
	<-done
}
