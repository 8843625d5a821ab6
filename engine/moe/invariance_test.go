package moe_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/engine/moe/shard"
	"github.com/weirhq/weir/experts/plan"
)

// shuffled is a valid placement at random.
func shuffled(t testing.TB, rng *rand.Rand, fleet plan.Fleet, layers, experts int) plan.Placement {
	t.Helper()
	loads := make([][]float64, layers)
	for l := range loads {
		for range experts {
			loads[l] = append(loads[l], 1+50*rng.Float64())
		}
	}
	r, err := plan.Solve(plan.Problem{Loads: loads, Fleet: fleet, Work: 5000})
	if err != nil {
		t.Fatal(err)
	}
	return r.Placement
}

// TestSameBits steps the same tokens under placements, batches and threads
// that differ, and wants the same bits.
func TestSameBits(t *testing.T) {
	cache := t.TempDir()
	one := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 2, Shards: 1})
	texts := prompts(t, one, 320+80*slow, "")
	var want [][][]float32 // of each text, after the prompt and after each token of the answer
	for _, tokens := range texts {
		want = append(want, trace(t, one, tokens))
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for name, o := range map[string]moe.Options{
		"4 shards of 6":   {Shards: 4, Slots: 6},
		"16 shards of 1":  {Shards: 16, Slots: 1},
		"random":          {Placement: new(shuffled(t, rng, plan.Uniform(4, 6), 6, 16))},
		"random, 2 of 16": {Placement: new(shuffled(t, rng, plan.Uniform(2, 16), 6, 16))},
		"uneven, threads": {Placement: new(shuffled(t, rng, plan.Fleet{Slots: []int{3, 9, 0, 7}}, 6, 16)), Threads: 3},
	} {
		o.Name, o.CacheDir, o.MaxSeqs = "hub-cloud", cache, len(texts)
		r := open(t, o)
		for i, got := range together(t, r, texts, want) {
			for j := range want[i] {
				if !slices.Equal(got[j], want[i][j]) {
					t.Errorf("%s: text %d, token %d: logits differ", name, i, j)
					break
				}
			}
		}
	}
}

// trace steps a prompt and its greedy answer alone, token by token, and returns
// all logits.
func trace(t *testing.T, r engine.Runner, tokens []engine.Token) (rows [][]float32) {
	for pos := 0; len(rows) < 30; {
		row := enginetest.Last(t, r, 0, pos, tokens)
		rows, pos = append(rows, row), pos+len(tokens)
		tokens = []engine.Token{enginetest.Argmax(row)}
	}
	if err := r.Forget(0, 0); err != nil {
		t.Fatal(err)
	}
	return rows
}

// together does what trace did for all texts in one batch per step, with
// prompts in pieces of different sizes.
func together(t *testing.T, r engine.Runner, texts [][]engine.Token, like [][][]float32) [][][]float32 {
	got, pos := make([][][]float32, len(texts)), make([]int, len(texts))
	left := slices.Clone(texts)
	for {
		var spans []engine.Span
		for i := range texts {
			if len(got[i]) == len(like[i]) {
				continue
			}
			n := min(len(left[i]), 3+7*i)
			spans = append(spans, engine.Span{Seq: engine.Seq(i), Pos: pos[i], Tokens: left[i][:n], Logits: true})
			pos[i], left[i] = pos[i]+n, left[i][n:]
		}
		if len(spans) == 0 {
			return got
		}
		for s, row := range enginetest.Step(t, r, spans...) {
			i := int(spans[s].Seq)
			if len(left[i]) == 0 {
				got[i] = append(got[i], row)
				left[i] = []engine.Token{enginetest.Argmax(row)}
			}
		}
	}
}

// TestMoveWhileGenerating moves experts all the time, by another goroutine, and
// wants the answers of a runner that stays as it is.
func TestMoveWhileGenerating(t *testing.T) {
	cache := t.TempDir()
	still := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 8})
	moved := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 8, Threads: 2})
	texts := prompts(t, still, 60*slow, "")
	want := serve(t, still, texts, nil)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var moves atomic.Int64
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(5, 5))
		for ctx.Err() == nil {
			if err := moved.Place(ctx, shuffled(t, rng, plan.Uniform(4, 6), 6, 16)); err != nil && ctx.Err() == nil {
				t.Error(err)
			} else if err == nil {
				moves.Add(1)
			}
		}
	})
	rounds := 0
	for ; rounds == 0 || moves.Load() == 0 && !t.Failed(); rounds++ {
		if got := serve(t, moved, texts, nil); !slices.Equal(got, want) {
			t.Error("answers changed while experts moved")
		}
	}
	stop()
	wg.Wait()
	s := moved.Experts()
	if s.Generation != uint64(moves.Load()) || s.Copied == 0 {
		t.Errorf("%d moves, generation %d, %d bytes copied", moves.Load(), s.Generation, s.Copied)
	}
	t.Logf("%d answers, %d moves, %d MB copied meanwhile", rounds*len(want), moves.Load(), s.Copied>>20)
}

// TestLoss takes a shard away in the middle of generation.
func TestLoss(t *testing.T) {
	cache := t.TempDir()
	still := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 4})
	texts := prompts(t, still, 150*slow, "")
	want := serve(t, still, texts, nil)
	// 4 shards of 8: each expert twice, never both in one shard.
	twice := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 4, Shards: 4, Slots: 8})
	got := serve(t, twice, texts, func(step int) {
		if step == 20 {
			if err := twice.Lose(1); err != nil {
				t.Fatal(err)
			}
		}
	})
	if !slices.Equal(got, want) {
		t.Error("answers changed when a shard was lost whose experts have a replica")
	}
	if s := twice.Experts(); !s.Shards[1].Lost || s.Shards[1].Bytes != 0 || s.Shards[0].Lost {
		t.Errorf("shards %+v", s.Shards)
	}

	once := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 4, Shards: 4, Slots: 4})
	enginetest.Step(t, once, engine.Span{Tokens: texts[0][:5]})
	if err := once.Lose(2); err != nil {
		t.Fatal(err)
	}
	if _, err := once.Step([]engine.Span{{Pos: 5, Tokens: texts[0][5:], Logits: true}}); !errors.Is(err, shard.ErrLost) {
		t.Errorf("step that needs a lost expert: %v", err)
	}
	if kv, err := once.ExportKV(nil, 0, 0); err != nil || len(kv) != 40+5*once.Info().KVBytesPerToken {
		t.Errorf("the failed step left %d bytes of KV, %v", len(kv), err)
	}
	next := once.Placement()
	if err := once.Place(context.Background(), next); !errors.Is(err, shard.ErrLost) {
		t.Errorf("placement on a lost shard: %v", err)
	}
}

func TestNoAllocation(t *testing.T) {
	if slow > 1 {
		t.Skip("the race detector allocates")
	}
	r := open(t, moe.Options{Name: "hub-cloud", MaxSeqs: 2})
	enginetest.Step(t, r, engine.Span{Seq: 0, Tokens: make([]engine.Token, 33)}, engine.Span{Seq: 1, Tokens: make([]engine.Token, 34)})
	tok := []engine.Token{70}
	spans := []engine.Span{{Seq: 0, Pos: 33, Tokens: tok, Logits: true}, {Seq: 1, Pos: 34, Tokens: tok, Logits: true}}
	if n := testing.AllocsPerRun(20, func() {
		if _, err := r.Step(spans); err != nil {
			t.Fatal(err)
		}
		spans[0].Pos++
		spans[1].Pos++
	}); n != 0 {
		t.Errorf("%v allocations per step", n)
	}
}
