package loop_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/engine/worker/state"
	"pgregory.net/rapid"
)

// storm sends requests that are handed over, moved, copied and cancelled.
type storm struct {
	*rig
	imports, done atomic.Int64
}

// fate is what becomes of a request.
type fate struct {
	prompt string
	tokens int
	how    string // "": it is answered
	when   string // its client leaves; "" never
	again  *fate  // of the state that it leaves, nil: nobody takes that
}

func drawFate(t *rapid.T, depth int) *fate {
	f := &fate{prompt: rapid.StringN(0, 20, 30).Draw(t, "prompt"), tokens: rapid.IntRange(1, 40).Draw(t, "tokens"),
		how:  rapid.SampledFrom([]string{"", "", "export", "move", "copy"}).Draw(t, "how"),
		when: rapid.SampledFrom([]string{"", "", "at once", "after a token"}).Draw(t, "leaves")}
	if depth < 3 && (f.how == "export" || f.how == "move") && rapid.Bool().Draw(t, "taken") {
		f.again = drawFate(t, depth+1)
	}
	return f
}

// live sends a request and does with it what its fate says.
func (s *storm) live(t fataler, f *fate, q loop.Request) {
	q.MaxTokens, q.Export = f.tokens, f.how == "export"
	st, err := s.Submit(context.Background(), q)
	if err != nil {
		t.Errorf("%v", err)
		return
	}
	if f.when == "at once" {
		st.Cancel()
	}
	var b loop.Batch
	shown := 0
	for first := true; b.Finish == ""; first = false {
		if err := st.Next(context.Background(), &b); err != nil {
			t.Errorf("%v", err)
		}
		shown += len(b.Text)
		if !first || b.Finish != "" {
			continue
		}
		switch f.how {
		case "move":
			st.Migrate(0, nil)
		case "copy":
			st.Stage(context.Background(), 0)
		}
		if f.when == "after a token" {
			st.Cancel()
		}
	}
	h := st.Result().Handoff
	if h == nil || f.again == nil {
		return
	}
	s.imports.Add(1)
	h.Done = func() { s.done.Add(1) }
	next := loop.Request{Prompt: q.Prompt, Resumed: q.Resumed, Shown: q.Shown + shown, Import: h}
	if b.Finish == loop.FinishMigrated {
		next.Resumed = st.Result().Generated
	}
	s.live(t, f.again, next)
}

// left tells what requests still hold, "" where that is nothing.
func (s *storm) left(m state.Message, cache bool) string {
	tokens, imports := s.runner.Tokens(), s.imports.Load()-s.done.Load()
	if m.Running+m.Waiting+len(m.Requests) == 0 && m.KVBlocksUsed == m.CachedBlocks && (cache || tokens == 0) && imports == 0 {
		return ""
	}
	return fmt.Sprintf("%+v, %d requests, %d tokens, %d hand-offs", m.Load, len(m.Requests), tokens, imports)
}

// TestNothingIsLeft: after any mix of answers, hand-offs, moves and clients that
// leave, with a KV cache that is too small for all, no sequence, no block and no
// hand-off is held, but for the prefix cache.
func TestNothingIsLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		board, cache := state.NewBoard(), rapid.Bool().Draw(t, "cache")
		seqs := rapid.IntRange(1, 6).Draw(t, "seqs")
		pace := func([]engine.Span) error { time.Sleep(50 * time.Microsecond); return nil } // or answers end before they can move
		s := &storm{rig: beginWith(t, runnertest.Options{BeforeStep: pace, Context: 160, MaxSeqs: seqs, MaxBatch: seqs + rapid.IntRange(0, 40).Draw(t, "batch"),
			KVTokens: rapid.IntRange(160, 300).Draw(t, "kv")}, loop.Options{PrefixCache: cache, Board: board,
			Chunk: rapid.IntRange(0, 20).Draw(t, "chunk"), Headroom: rapid.IntRange(0, 20).Draw(t, "headroom")})}
		defer s.end(t)
		var wg sync.WaitGroup
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			f := drawFate(t, 0)
			wg.Go(func() { s.live(t, f, loop.Request{Prompt: prompt(s.runner, f.prompt)}) })
		}
		wg.Wait()
		left := "unknown"
		for limit := time.Now().Add(time.Minute); left != "" && time.Now().Before(limit); time.Sleep(time.Millisecond) { // an answer ends before its step does
			left = s.left(board.NewReader().Next(), cache)
		}
		if left != "" {
			t.Errorf("left: %s", left)
		}
	})
}
