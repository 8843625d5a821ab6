package loop_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/runnertest"
)

// TestCancelWithinOneStep: after the step during which a client left, none has
// its sequence.
func TestCancelWithinOneStep(t *testing.T) {
	var steps atomic.Int64
	var cancelled atomic.Bool
	var after atomic.Int64
	inStep := make(chan struct{})
	release := make(chan struct{})
	r := begin(t, runnertest.Options{Endless: true, BeforeStep: func(spans []engine.Span) error {
		if steps.Add(1) == 5 {
			close(inStep)
			<-release
		} else if cancelled.Load() {
			after.Add(int64(len(spans)))
		}
		return nil
	}})
	defer r.end(t)
	ctx, cancel := context.WithCancel(context.Background())
	s, err := r.Submit(ctx, loop.Request{Prompt: prompt(r.runner, "x")})
	if err != nil {
		t.Fatal(err)
	}
	<-inStep
	cancel()
	s.Cancel() // as the context's end does, but now for sure
	cancelled.Store(true)
	close(release)
	got, err := collect(s)
	if got.Finish != loop.FinishAbort || err != nil || after.Load() != 0 {
		t.Errorf("%s, %v, %d spans after the step", got.Finish, err, after.Load())
	}
}

// TestStepIsStopped: when all whom a step is for have left it is stopped, and
// nothing more is computed for them; while one is left it goes on.
func TestStepIsStopped(t *testing.T) {
	var r *rig
	var steps atomic.Int64
	all, inStep := make(chan struct{}), make(chan struct{})
	oneLeft, looked, allLeft := make(chan struct{}), make(chan struct{}), make(chan struct{})
	enter := sync.OnceFunc(func() { close(inStep) })
	r = begin(t, runnertest.Options{BeforeStep: func(spans []engine.Span) error {
		<-all
		if len(spans) != 2 {
			return nil
		}
		steps.Add(1)
		enter()
		<-oneLeft
		if r.runner.Stopped() {
			t.Error("stopped although somebody waits")
		}
		close(looked)
		<-allLeft
		if !r.runner.Stopped() {
			t.Error("not stopped although all have left")
		}
		return nil
	}})
	defer r.end(t)
	var streams [2]*loop.Stream
	for i := range streams {
		s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, "for nobody"), IgnoreEOS: true})
		if err != nil {
			t.Fatal(err)
		}
		streams[i] = s
	}
	close(all)
	<-inStep
	streams[0].Cancel()
	close(oneLeft)
	<-looked
	streams[1].Cancel()
	close(allLeft)
	for _, s := range streams {
		if got, err := collect(s); got.Finish != loop.FinishAbort || err != nil {
			t.Errorf("%s, %v", got.Finish, err)
		}
	}
	if n := steps.Load(); n != 1 {
		t.Errorf("%d steps", n)
	}
	s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, "go on"), MaxTokens: 3})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := collect(s); err != nil || len(got.Tokens) != 3 {
		t.Errorf("afterwards %d tokens, %s, %v", len(got.Tokens), got.Finish, err)
	}
}
