package loop_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/batch"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/runnertest"
)

// TestPriority: with one sequence, who waits is served by priority, then by when
// the first token is due.
func TestPriority(t *testing.T) {
	held, all := make(chan struct{}), make(chan struct{})
	hold := sync.OnceFunc(func() { close(held) })
	r := begin(t, runnertest.Options{MaxSeqs: 1, BeforeStep: func([]engine.Span) error { hold(); <-all; return nil }})
	defer r.end(t)
	submit := func(q loop.Request) *loop.Stream {
		q.Prompt, q.MaxTokens = prompt(r.runner, "x"), 2
		s, err := r.Submit(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	submit(loop.Request{})
	<-held // the sequence, before the others come
	streams := []*loop.Stream{
		submit(loop.Request{Priority: 1, Due: time.Millisecond}),
		submit(loop.Request{}),
		submit(loop.Request{Due: time.Millisecond}),
		submit(loop.Request{Priority: -1, Due: time.Hour}),
	}
	close(all)
	var first [4]time.Time
	for i, s := range streams {
		if _, err := collect(s); err != nil {
			t.Fatal(err)
		}
		first[i] = s.Result().Timing.First
	}
	if !first[3].Before(first[2]) || !first[2].Before(first[1]) || !first[1].Before(first[0]) {
		t.Errorf("first tokens at %v", first)
	}
}

// TestChunkedPrefill: while somebody decodes, no step has more prompt tokens
// than the chunk, or than a measured machine computes in time.
func TestChunkedPrefill(t *testing.T) {
	slow := &cost.Model{Pieces: []cost.Piece{{PerPrefill: 10}}}
	for want, o := range map[int64]loop.Options{16: {Chunk: 16}, batch.LeastChunk: {Chunk: 100, Cost: slow}} {
		testChunkedPrefill(t, o, want)
	}
}

func testChunkedPrefill(t *testing.T, o loop.Options, want int64) {
	var most, long atomic.Int64
	begun, both := make(chan struct{}), make(chan struct{})
	r := beginWith(t, runnertest.Options{Endless: true, BeforeStep: func(spans []engine.Span) error {
		for _, s := range spans {
			if s.Seq != spans[0].Seq {
				most.Store(max(most.Load(), int64(len(s.Tokens))))
				long.Add(int64(len(s.Tokens)))
			}
		}
		if len(spans) == 1 && spans[0].Pos == 3 {
			close(begun)
			<-both
		}
		return nil
	}}, o)
	defer r.end(t)
	short, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, "ab"), MaxTokens: 100})
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, strings.Repeat("x", 200)), MaxTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	close(both)
	for _, s := range []*loop.Stream{s, short} {
		if _, err := collect(s); err != nil {
			t.Fatal(err)
		}
	}
	if most.Load() != want || long.Load() != 201 {
		t.Errorf("%d prompt tokens in a step, %d in all", most.Load(), long.Load())
	}
}

// TestHeadroomPreempts: outputs that outgrow the cache cost the last in order
// its sequence, not its answer.
func TestHeadroomPreempts(t *testing.T) {
	all := make(chan struct{})
	var begun atomic.Int64
	r := beginWith(t, runnertest.Options{Endless: true, Context: 100, MaxSeqs: 4, KVTokens: 160, BeforeStep: func(spans []engine.Span) error {
		<-all
		for _, s := range spans {
			if s.Pos == 0 {
				begun.Add(1)
			}
		}
		return nil
	}}, loop.Options{Headroom: 8})
	defer r.end(t)
	var streams []*loop.Stream
	for i := range 4 {
		s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, fmt.Sprint("request ", i)), MaxTokens: 80})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	close(all)
	for i, s := range streams {
		got, err := collect(s)
		if err != nil || len(got.Tokens) != 80 {
			t.Errorf("request %d: %d tokens, %v", i, len(got.Tokens), err)
		}
	}
	if begun.Load() <= 4 {
		t.Error("nobody was preempted: the test shows nothing")
	}
}

// TestPanic: a runner that panics ends the loop, and no request hangs.
func TestPanic(t *testing.T) {
	r := begin(t, runnertest.Options{Endless: true, BeforeStep: func(spans []engine.Span) error {
		if spans[0].Pos > 10 {
			panic("made to")
		}
		return nil
	}})
	s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, "x"), MaxTokens: 50})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := collect(s); b.Finish != loop.FinishError || !errors.Is(err, loop.ErrRunner) {
		t.Errorf("%s, %v", b.Finish, err)
	}
	if err := r.stop(); err == nil || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("the loop ended with %v", err)
	}
}

// TestStateThatCannotBeExported: who ordered the move is told that the request
// stays, and it goes on to its end.
func TestStateThatCannotBeExported(t *testing.T) {
	held, ordered := make(chan struct{}), make(chan struct{})
	hold := sync.OnceFunc(func() { close(held) })
	r := begin(t, runnertest.Options{Endless: true, BeforeStep: func([]engine.Span) error { hold(); <-ordered; return nil }})
	defer r.end(t)
	s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, "x"), MaxTokens: 20})
	if err != nil {
		t.Fatal(err)
	}
	<-held
	var told atomic.Int32
	s.Migrate(1<<20, func() { told.Add(1) }) // from beyond its end
	close(ordered)
	b, err := collect(s)
	if err != nil || b.Finish != loop.FinishLength || told.Load() != 1 {
		t.Errorf("%s, %v, told %d times", b.Finish, err, told.Load())
	}
}
