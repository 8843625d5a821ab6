package loop_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/engine/worker/state"
	"github.com/weirhq/weir/internal/prefix"
	"pgregory.net/rapid"
)

// ask submits a request and reads its answer.
func (r *rig) ask(t fataler, q loop.Request) (loop.Batch, loop.Result) {
	s, err := r.Submit(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	b, err := collect(s)
	if err != nil {
		t.Fatal(err)
	}
	return b, s.Result()
}

// keysFor makes n keys that belong to text.
func keysFor(text string, n int) []prefix.Key {
	out := make([]prefix.Key, n)
	for i := range out {
		copy(out[i][:], text)
		binary.LittleEndian.PutUint16(out[i][14:], uint16(i))
	}
	return out
}

func TestPrefixCache(t *testing.T) {
	board := state.NewBoard()
	r := beginWith(t, runnertest.Options{MaxSeqs: 3}, loop.Options{PrefixCache: true, Board: board})
	defer r.end(t)
	system := strings.Repeat("be brief. ", 10) // 100 tokens, 101 with BOS
	first := prompt(r.runner, system+"who are you?")
	got, res := r.ask(t, loop.Request{Prompt: first, MaxTokens: 8, Keys: keysFor("first", 2)})
	if res.CachedTokens != 0 || !slices.Equal(tokensOf(got), alone(t, first, 8)) {
		t.Errorf("first: %d cached, %v", res.CachedTokens, tokensOf(got))
	}
	said := len(got.Tokens) - 1 // the last token was never fed back
	for _, tt := range []struct {
		name   string
		tokens []engine.Token
		salt   string
		cached int
	}{
		{"same again, all but the last token", first, "", len(first) - 1},
		{"conversation goes on", slices.Concat(first, tokensOf(got)[:said], prompt(r.runner, "and?")), "", len(first) + said},
		{"same beginning", prompt(r.runner, system+"what is this?"), "", 101 + 2},
		{"another tenant", first, "b", 0},
		{"that tenant again", first, "b", len(first) - 1},
		{"too little in common", prompt(r.runner, "be brief, please, and say something else"), "", 0},
	} {
		b, res := r.ask(t, loop.Request{Prompt: tt.tokens, Salt: tt.salt, MaxTokens: 8})
		if want := min(tt.cached, len(tt.tokens)-1); res.CachedTokens != want {
			t.Errorf("%s: %d cached, want %d", tt.name, res.CachedTokens, want)
		}
		if !slices.Equal(tokensOf(b), alone(t, tt.tokens, 8)) {
			t.Errorf("%s: %v", tt.name, tokensOf(b))
		}
	}
	m := quiet(board)
	if m.CachedBlocks == 0 || m.KVBlocksUsed != m.CachedBlocks || m.PrefixHits == 0 || m.HitRate <= 0 || m.PrefixQueries <= m.PrefixHits {
		t.Errorf("board says %+v", m.Load)
	}
}

// quiet is what a board says once no request runs: an answer ends before the step
// that ends it is told.
func quiet(board *state.Board) state.Message {
	m := board.NewReader().Next()
	for limit := time.Now().Add(time.Minute); m.Running > 0 && time.Now().Before(limit); m = board.NewReader().Next() {
		time.Sleep(time.Millisecond)
	}
	return m
}

// TestKeysOnTheBoard: the keys of what is held, and no others.
func TestKeysOnTheBoard(t *testing.T) {
	board := state.NewBoard()
	r := beginWith(t, runnertest.Options{MaxSeqs: 2}, loop.Options{PrefixCache: true, Board: board})
	defer r.end(t)
	for i := range 4 {
		text := fmt.Sprint(i, strings.Repeat(" different", 6))
		r.ask(t, loop.Request{Prompt: prompt(r.runner, text), MaxTokens: 4, Keys: keysFor(text, 3)})
	}
	m := quiet(board)
	slices.Sort(m.KeysAdded)
	var want []string
	for i := 2; i < 4; i++ { // two sequences hold the last two
		for _, k := range keysFor(fmt.Sprint(i, strings.Repeat(" different", 6)), 3) {
			want = append(want, k.String())
		}
	}
	slices.Sort(want)
	if !slices.Equal(m.KeysAdded, want) {
		t.Errorf("%v, want %v", m.KeysAdded, want)
	}
}

// TestCacheMakesRoom: what is cached never keeps a request out.
func TestCacheMakesRoom(t *testing.T) {
	r := beginWith(t, runnertest.Options{MaxSeqs: 4, Context: 200, KVTokens: 200}, loop.Options{PrefixCache: true})
	defer r.end(t)
	for i := range 12 {
		p := prompt(r.runner, fmt.Sprint(i%3, strings.Repeat("x", 20+i*10)))
		b, _ := r.ask(t, loop.Request{Prompt: p, MaxTokens: 200 - len(p), IgnoreEOS: true})
		if len(b.Tokens) != 200-len(p) {
			t.Fatalf("request %d: %d tokens", i, len(b.Tokens))
		}
	}
}

// TestSharedBufferStaysLight: where idle sequences cost time, a request finds what
// it goes on from, and the rest goes when it begins.
func TestSharedBufferStaysLight(t *testing.T) {
	r := beginWith(t, runnertest.Options{MaxSeqs: 6, Context: 900, SharedKV: true}, loop.Options{PrefixCache: true})
	defer r.end(t)
	for i := range 5 {
		p := prompt(r.runner, fmt.Sprint(i, strings.Repeat("x", 700)))
		r.ask(t, loop.Request{Prompt: p, MaxTokens: 2})
		if _, res := r.ask(t, loop.Request{Prompt: p, MaxTokens: 2}); res.CachedTokens != len(p)-1 {
			t.Errorf("%d cached", res.CachedTokens)
		}
		if n := r.runner.Tokens(); n > 1500 {
			t.Errorf("%d tokens are held", n)
		}
	}
}

// TestSharedBeginning: requests at the same time take the beginning from one
// that runs.
func TestSharedBeginning(t *testing.T) {
	system := strings.Repeat("be brief. ", 10)
	begun, all := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(begun); <-all })
	steps := 0
	r := beginWith(t, runnertest.Options{MaxSeqs: 4, Endless: true, BeforeStep: func([]engine.Span) error {
		if steps++; steps == 3 { // the first one's prompt is computed
			once()
		}
		return nil
	}}, loop.Options{PrefixCache: true})
	defer r.end(t)
	first, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, system+"0"), MaxTokens: 60})
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	var others []*loop.Stream
	for i := range 3 {
		s, err := r.Submit(context.Background(), loop.Request{Prompt: prompt(r.runner, fmt.Sprint(system, i+1)), MaxTokens: 10})
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, s)
	}
	close(all)
	for i, s := range others {
		if _, err := collect(s); err != nil || s.Result().CachedTokens != 101 {
			t.Errorf("request %d: %d cached, %v", i, s.Result().CachedTokens, err)
		}
	}
	if _, err := collect(first); err != nil {
		t.Error(err)
	}
}

// TestResume cuts answers anywhere and goes on in another loop.
func TestResume(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, two := begin(t, runnertest.Options{}), begin(t, runnertest.Options{})
		defer one.end(t)
		defer two.end(t)
		q := loop.Request{Prompt: prompt(one.runner, "go on"), MaxTokens: 30}
		if rapid.Bool().Draw(t, "sampled") {
			q.Sample.Temperature, q.Sample.Seed = 1.3, rapid.Uint64().Draw(t, "seed")
		}
		if rapid.Bool().Draw(t, "stops") {
			q.Stop = []string{"ab", "xyz"}
		}
		want, _ := one.ask(t, q)
		at := rapid.IntRange(0, len(want.Tokens)-1).Draw(t, "at")
		head := q
		head.MaxTokens = max(at, 1)
		cut, _ := one.ask(t, head)
		if at == 0 {
			cut = loop.Batch{}
		}
		rest := q
		rest.Resumed, rest.Shown = tokensOf(cut), len(cut.Text)
		rest.MaxTokens = q.MaxTokens - at
		got, res := two.ask(t, rest)
		if string(cut.Text)+string(got.Text) != string(want.Text) || at+len(got.Tokens) != len(want.Tokens) || got.Finish != want.Finish {
			t.Fatalf("%q and %q, %s; want %q, %s", cut.Text, got.Text, got.Finish, want.Text, want.Finish)
		}
		if res.PromptTokens != len(q.Prompt) || res.CompletionTokens != len(got.Tokens) {
			t.Fatalf("usage %+v", res)
		}
	})
}

// TestMigrate moves a running request, twice, without computing a token again.
func TestMigrate(t *testing.T) {
	q := func(r *rig) loop.Request {
		q := loop.Request{Prompt: prompt(r.runner, "a long way to go"), MaxTokens: 120, Stop: []string{"\x01"}}
		q.Sample.Temperature, q.Sample.Seed = 1.1, 7
		return q
	}
	whole := begin(t, runnertest.Options{Endless: true})
	defer whole.end(t)
	want, _ := whole.ask(t, q(whole))
	var text []byte
	next := q(whole)
	for hop := range 3 {
		proceed := make(chan struct{}, 200)
		r := begin(t, runnertest.Options{Endless: true, BeforeStep: func(spans []engine.Span) error {
			<-proceed
			for _, s := range spans {
				if len(s.Tokens) > 1 && hop > 0 {
					t.Errorf("hop %d computed %d tokens again", hop, len(s.Tokens))
				}
			}
			return nil
		}})
		s, err := r.Submit(context.Background(), next)
		if err != nil {
			t.Fatal(err)
		}
		if hop < 2 {
			for range 20 {
				proceed <- struct{}{}
			}
			var b loop.Batch
			for n := 0; n < 20; n += len(b.Tokens) {
				if err := s.Next(context.Background(), &b); err != nil {
					t.Fatal(err)
				}
				text = append(text, b.Text...)
			}
			s.Migrate(0, nil)
		}
		for range 200 {
			select {
			case proceed <- struct{}{}:
			default:
			}
		}
		b, err := collect(s)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b.Text...)
		close(proceed)
		r.end(t)
		if hop == 2 {
			if b.Finish != loop.FinishLength {
				t.Errorf("ended with %s", b.Finish)
			}
			break
		}
		res := s.Result()
		if b.Finish != loop.FinishMigrated || res.Handoff == nil || len(res.Handoff.Tokens) != len(next.Prompt)+len(res.Generated) {
			t.Fatalf("hop %d: %s, %+v", hop, b.Finish, res)
		}
		next.Resumed, next.Shown, next.Import = res.Generated, len(text), res.Handoff
		next.MaxTokens = 120 - len(res.Generated)
	}
	if string(text) != string(want.Text) {
		t.Errorf("%q\nwant %q", text, want.Text)
	}
}
