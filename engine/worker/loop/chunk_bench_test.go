package loop_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/gguf/random"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/engine/worker/profile"
)

// BenchmarkChunks streams answers of a model of 10 M random parameters while
// prompts of 600 tokens arrive, one after the other: with chunks of a fixed size,
// and with chunks that a cost model, measured before, sizes by the streams' slack
// at 50 ms a token. The ways take turns, so that what else the machine does falls
// on all of them.
func BenchmarkChunks(b *testing.B) {
	file := filepath.Join(b.TempDir(), "random.gguf")
	if _, err := random.WriteFile(file, random.Options{Arch: "llama", Params: 10e6, Context: 4096, Type: gguf.Q8_0, Seed: 1}); err != nil {
		b.Fatal(err)
	}
	r := llamatest.Load(b, llama.Options{Path: file, MaxSeqs: 8, Context: 4096})
	samples, err := profile.Measure(context.Background(), r, 15*time.Second)
	if err != nil {
		b.Fatal(err)
	}
	machine := &cost.Model{}
	samples, _ = cost.Typical(samples)
	if machine.Pieces, err = cost.Fit(samples); err != nil {
		b.Fatal(err)
	}
	ways := []struct {
		name string
		o    loop.Options
		seen pace
	}{{name: "fixed-256", o: loop.Options{Chunk: 256}}, {name: "fixed-32", o: loop.Options{Chunk: 32}}, {name: "slack", o: loop.Options{Chunk: 256, Cost: machine}}}
	for b.Loop() {
		for range 3 {
			for i := range ways {
				if err := ways[i].seen.run(r, ways[i].o); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	for i := range ways {
		w := &ways[i]
		if len(w.seen.gaps) < 100 || len(w.seen.first) == 0 {
			b.Fatalf("%s: %d tokens, %d prompts: the machine is too busy", w.name, len(w.seen.gaps), len(w.seen.first))
		}
		b.ReportMetric(quantile(w.seen.gaps, 0.99), w.name+"-p99-ms")
		b.Logf("%-10s %4.0f ms p50, %4.0f ms p99 between %d tokens; %d prompts, the first token after %.0f ms (p50)",
			w.name, quantile(w.seen.gaps, 0.5), quantile(w.seen.gaps, 0.99), len(w.seen.gaps), len(w.seen.first), quantile(w.seen.first, 0.5))
	}
	b.ReportMetric(quantile(ways[2].seen.gaps, 0.99)/quantile(ways[0].seen.gaps, 0.99), "slack-over-256")
}

// pace is what was measured, in milliseconds.
type pace struct{ gaps, first []float64 }

func quantile(x []float64, q float64) float64 {
	slices.Sort(x)
	return x[int(q*float64(len(x)-1))]
}

// run streams four answers for eight seconds while prompts arrive.
func (p *pace) run(r engine.Runner, o loop.Options) error {
	o.Runner, o.Pieces, o.Metrics, o.Log = r, loop.NewPieces(r), metrics.New("m", r.Info().KVTokens), slog.New(slog.DiscardHandler)
	l, err := loop.New(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	var wg sync.WaitGroup
	var gaps [4][]float64
	for i := range gaps {
		s, err := l.Submit(ctx, loop.Request{Prompt: prompt(r, fmt.Sprint("stream ", i)), IgnoreEOS: true})
		if err != nil {
			return err
		}
		wg.Go(func() { gaps[i] = between(s) })
	}
	for i := 0; ctx.Err() == nil; i++ {
		s, err := l.Submit(ctx, loop.Request{Prompt: prompt(r, fmt.Sprintf("%03d%0600d", i, 0))[:600], MaxTokens: 4, IgnoreEOS: true})
		if err != nil {
			break // the time is over
		}
		if b, _ := collect(s); b.Finish == loop.FinishLength {
			t := s.Result().Timing
			p.first = append(p.first, milli(t.First.Sub(t.Arrived)))
		}
	}
	wg.Wait()
	p.gaps = slices.Concat(append(gaps[:], p.gaps)...)
	return <-done
}

// between reads a stream and returns the times between its tokens.
func between(s *loop.Stream) (gaps []float64) {
	var last time.Time
	for b := (loop.Batch{}); b.Finish == ""; {
		_ = s.Next(context.Background(), &b) // its end tells
		for now := time.Now(); len(b.Tokens) > 0; b.Tokens = b.Tokens[1:] {
			if !last.IsZero() {
				gaps = append(gaps, milli(now.Sub(last)))
			}
			last = now
		}
	}
	return gaps
}

func milli(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
