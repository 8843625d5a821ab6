package loop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/internal/testproc"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

// rig is a loop under test.
type rig struct {
	*loop.Loop
	runner  *runnertest.Runner
	metrics *metrics.Set
	stop    func() error
}

// fataler is what both testing.T and rapid.T can do.
type fataler interface {
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

func begin(t fataler, o runnertest.Options) *rig { return beginWith(t, o, loop.Options{}) }

// beginWith begins a loop with some options; the rest is filled in.
func beginWith(t fataler, o runnertest.Options, lo loop.Options) *rig {
	r := runnertest.New(o)
	m := metrics.New("toy", r.Info().KVTokens)
	lo.Runner, lo.Pieces, lo.Metrics, lo.Log = r, loop.NewPieces(r), m, slog.New(slog.DiscardHandler)
	l, err := loop.New(lo)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return &rig{l, r, m, sync.OnceValue(func() error { cancel(); return <-done })}
}

func (r *rig) end(t fataler) {
	if err := r.stop(); err != nil {
		t.Errorf("loop ended with %v", err)
	}
	if n := r.runner.Tokens(); n != 0 {
		t.Errorf("%d tokens are left in the KV cache", n)
	}
}

func prompt(r engine.Runner, text string) []engine.Token {
	t, _ := r.Tokenize(text, false)
	return append([]engine.Token{runnertest.BOS}, t...)
}

// collect reads a stream to its end.
func collect(s *loop.Stream) (all loop.Batch, err error) {
	var b loop.Batch
	for all.Finish == "" {
		err = s.Next(context.Background(), &b)
		all.Text = append(all.Text, b.Text...)
		all.Tokens = append(all.Tokens, b.Tokens...)
		all.Top = append(all.Top, b.Top...)
		all.Finish = b.Finish
	}
	return all, err
}

// alone computes a request's greedy answer on a runner of its own, one token a
// step: the reference for everything else.
func alone(t fataler, p []engine.Token, most int) []engine.Token {
	r := runnertest.New(runnertest.Options{MaxBatch: 1024})
	var out []engine.Token
	pos := 0
	for len(out) < most {
		rows, err := r.Step([]engine.Span{{Seq: 0, Pos: pos, Tokens: p, Logits: true}})
		if err != nil {
			t.Fatal(err)
		}
		pos += len(p)
		next, _ := sample.Greedy(rows[0])
		out = append(out, next)
		if r.IsEnd(next) {
			break
		}
		p = []engine.Token{next}
	}
	return out
}

func tokensOf(b loop.Batch) []engine.Token {
	var out []engine.Token
	for _, t := range b.Tokens {
		out = append(out, t.Token)
	}
	return out
}

// TestAnswersDoNotDependOnTheBatch runs random loads in random limits and
// compares every answer with the one computed alone; some requests are
// cancelled on the way.
func TestAnswersDoNotDependOnTheBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seqs := rapid.IntRange(1, 6).Draw(t, "seqs")
		r := beginWith(t, runnertest.Options{Context: 96, MaxSeqs: seqs, MaxBatch: seqs + rapid.IntRange(0, 40).Draw(t, "batch"),
			KVTokens: rapid.IntRange(96, 300).Draw(t, "kv")}, loop.Options{PrefixCache: rapid.Bool().Draw(t, "cache"),
			Chunk: rapid.IntRange(0, 20).Draw(t, "chunk"), Headroom: rapid.IntRange(0, 20).Draw(t, "headroom")})
		defer r.end(t)
		var wg sync.WaitGroup
		for i := range rapid.IntRange(1, 12).Draw(t, "requests") {
			text := rapid.SampledFrom([]string{"", "what all begin with, "}).Draw(t, "start") + rapid.StringN(0, 20, 30).Draw(t, "prompt")
			most := rapid.IntRange(1, 40).Draw(t, "max")
			cancel := rapid.Bool().Draw(t, "cancel") && i%3 == 0
			p := prompt(r.runner, text)
			s, err := r.Submit(context.Background(), loop.Request{Prompt: p, MaxTokens: most, Priority: rapid.IntRange(-1, 1).Draw(t, "priority")})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				if cancel {
					s.Cancel()
				}
				got, err := collect(s)
				if err != nil {
					t.Errorf("request failed: %v", err)
				}
				if want := alone(t, p, most); !(cancel && got.Finish == loop.FinishAbort) && !slices.Equal(tokensOf(got), want) {
					t.Errorf("%q: got %v, want %v", text, tokensOf(got), want)
				}
			})
		}
		wg.Wait()
	})
}

func TestFinish(t *testing.T) {
	r := begin(t, runnertest.Options{Context: 64})
	defer r.end(t)
	p := prompt(r.runner, "say it")
	whole := alone(t, p, 64)
	var text strings.Builder
	for _, tok := range whole {
		text.Write(r.runner.Piece(nil, tok))
	}
	full := text.String()
	if len(full) < 12 || len(whole) > 50 {
		t.Fatalf("the toy says %q, which does not suit this test", full)
	}
	for _, tt := range []struct {
		name   string
		req    loop.Request
		text   string
		finish loop.Finish
		tokens int
	}{
		{"end token", loop.Request{}, full, loop.FinishStop, len(whole)},
		{"length", loop.Request{MaxTokens: 5}, full[:5], loop.FinishLength, 5},
		{"stop string", loop.Request{Stop: []string{full[6:9]}}, full[:6], loop.FinishStop, 9},
		{"stop string not complete at length", loop.Request{MaxTokens: 8, Stop: []string{full[6:9]}}, full[:8], loop.FinishLength, 8},
		{"stop string that never comes", loop.Request{Stop: []string{"\x01"}}, full, loop.FinishStop, len(whole)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.req.Prompt = p
			s, err := r.Submit(context.Background(), tt.req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := collect(s)
			res := s.Result()
			if err != nil || string(got.Text) != tt.text || got.Finish != tt.finish || res.CompletionTokens != tt.tokens || len(got.Tokens) != tt.tokens {
				t.Errorf("%q, %s, %d tokens, %v; want %q, %s, %d", got.Text, got.Finish, res.CompletionTokens, err, tt.text, tt.finish, tt.tokens)
			}
			if res.PromptTokens != len(p) || res.Timing.First.Before(res.Timing.Admitted) || res.Timing.Last.Before(res.Timing.First) {
				t.Errorf("result %+v", res)
			}
		})
	}
	t.Run("context", func(t *testing.T) {
		s, err := r.Submit(context.Background(), loop.Request{Prompt: p, IgnoreEOS: true, MaxTokens: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := collect(s); got.Finish != loop.FinishLength || len(got.Tokens) != 64-len(p) {
			t.Errorf("%s after %d tokens", got.Finish, len(got.Tokens))
		}
	})
	t.Run("at least", func(t *testing.T) {
		s, err := r.Submit(context.Background(), loop.Request{Prompt: p, MinTokens: len(whole) + 3, MaxTokens: len(whole) + 3})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := collect(s); len(got.Tokens) != len(whole)+3 || slices.Contains(tokensOf(got), runnertest.EOS) {
			t.Errorf("%d tokens", len(got.Tokens))
		}
	})
}

func TestLogprobs(t *testing.T) {
	r := begin(t, runnertest.Options{})
	defer r.end(t)
	s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, "x"), MaxTokens: 9, Logprobs: true, Top: 3})
	if err != nil {
		t.Fatal(err)
	}
	got, err := collect(s)
	if err != nil || len(got.Top) != 3*len(got.Tokens) {
		t.Fatalf("%v: %d tokens, %d alternatives", err, len(got.Tokens), len(got.Top))
	}
	for i, tok := range got.Tokens {
		if top := got.Top[3*i:][:3]; top[0] != tok || top[1].Logprob > top[0].Logprob || tok.Logprob >= 0 {
			t.Errorf("token %d is %+v, alternatives %+v", i, tok, top)
		}
	}
}

// TestSlowReader: nobody reads one stream; the others end all the same.
func TestSlowReader(t *testing.T) {
	r := begin(t, runnertest.Options{Endless: true, Context: 512})
	defer r.end(t)
	slow, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, "slow")})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, "quick"), MaxTokens: 100})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := collect(s); err != nil || len(got.Tokens) != 100 {
			t.Fatalf("%d tokens, %v", len(got.Tokens), err)
		}
	}
	if got, err := collect(slow); err != nil || len(got.Tokens) != 512-5 {
		t.Errorf("%d tokens, %v", len(got.Tokens), err)
	}
}

func TestRefusals(t *testing.T) {
	block := make(chan struct{})
	r := runnertest.New(runnertest.Options{Context: 32, BeforeStep: func([]engine.Span) error { <-block; return nil }})
	l, err := loop.New(loop.Options{Runner: r, Pieces: loop.NewPieces(r), Metrics: metrics.New("toy", 1), Log: slog.New(slog.DiscardHandler), MaxWaiting: 2})
	if err != nil {
		t.Fatal(err)
	}
	submit := func(n int) error {
		_, err := l.Submit(context.Background(), loop.Request{Prompt: make([]engine.Token, n), MaxTokens: 1})
		return err
	}
	if err := submit(32); !errors.Is(err, loop.ErrContext) {
		t.Errorf("a full context: %v", err)
	}
	for i, want := range []error{nil, nil, loop.ErrBusy} {
		if err := submit(3); !errors.Is(err, want) {
			t.Errorf("request %d: %v, want %v", i, err, want)
		}
	}
	close(block)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Run(ctx); err != nil {
		t.Error(err)
	}
	if err := submit(3); !errors.Is(err, loop.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestEveryRequestEnds: however Submit races with the end of Run.
func TestEveryRequestEnds(t *testing.T) {
	for range 30 {
		r := begin(t, runnertest.Options{})
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for k := 0; ; k++ {
					s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, fmt.Sprint(i, k)), MaxTokens: 3})
					if errors.Is(err, loop.ErrClosed) {
						return
					}
					if got, _ := collect(s); got.Finish == "" {
						t.Error("no finish")
					}
				}
			})
		}
		time.Sleep(time.Millisecond) // the race to be won by either side
		r.end(t)
		wg.Wait()
	}
}

func TestKVFullPreemptsTheNewest(t *testing.T) {
	var full atomic.Int64
	all := make(chan struct{}) // no step before all three have been submitted
	r := begin(t, runnertest.Options{Endless: true, MaxSeqs: 3, BeforeStep: func(spans []engine.Span) error {
		<-all
		if len(spans) == 3 && full.Add(1) <= 2 {
			return engine.ErrKVFull
		}
		return nil
	}})
	defer r.end(t)
	var streams []*loop.Stream
	for i := range 3 {
		s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, fmt.Sprint(i)), MaxTokens: 30, IgnoreEOS: true})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	close(all)
	for i, s := range streams {
		got, err := collect(s)
		if err != nil || len(got.Tokens) != 30 {
			t.Errorf("request %d: %d tokens, %s, %v", i, len(got.Tokens), got.Finish, err)
		}
	}
	if full.Load() < 1 {
		t.Error("nothing was preempted")
	}
}

func TestFailedStep(t *testing.T) {
	broken := errors.New("the model is broken")
	var fail atomic.Int64
	r := begin(t, runnertest.Options{BeforeStep: func([]engine.Span) error {
		if fail.Add(-1) >= 0 {
			return broken
		}
		return nil
	}})
	ask := func() (loop.Batch, error) {
		s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, "x"), MaxTokens: 2})
		if err != nil {
			return loop.Batch{}, err
		}
		return collect(s)
	}
	fail.Store(1)
	if got, err := ask(); got.Finish != loop.FinishError || !errors.Is(err, loop.ErrRunner) || !errors.Is(err, broken) {
		t.Errorf("%s, %v", got.Finish, err)
	}
	if got, err := ask(); err != nil || len(got.Tokens) == 0 {
		t.Errorf("after one failure: %v, %v", got, err)
	}
	fail.Store(1 << 40)
	for range 3 {
		if _, err := ask(); !errors.Is(err, loop.ErrRunner) {
			t.Errorf("got %v", err)
		}
	}
	if err := r.stop(); !errors.Is(err, broken) {
		t.Errorf("the loop ended with %v", err)
	}
}
