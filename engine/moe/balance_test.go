package moe_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/engine/moe/shard"
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/experts/rebalance"
)

// stream gives prompts of some tasks for ever. Their numbers start at base.
type stream struct {
	texts    [][]engine.Token
	base, at int
}

func (s *stream) next() (int, []engine.Token) {
	i := s.at % len(s.texts)
	s.at++
	return s.base + i, s.texts[i]
}

// live is a runner that balances its experts under traffic.
type live struct {
	t                 *testing.T
	r                 *moe.Runner
	s                 *server
	seen              uint64 // windows
	answered, changed int
}

// window serves a stream until the loop has judged one more window and returns
// the decision.
func (l *live) window(s *stream) rebalance.Decision {
	l.t.Helper()
	start, from := time.Now(), l.s.tokens
	for l.r.Experts().Windows == l.seen {
		l.s.step(l.t, s.next)
	}
	l.seen++
	ds := l.r.Experts().Decisions
	d := ds[l.seen-1]
	n := l.s.tokens - from
	l.t.Logf("window %2d: imbalance %.3f, %s (%s), %d transfers, target %.3f, bound %.3f; %d tokens, %.0f tokens/s",
		l.seen, d.Now, d.Action, d.Reason, d.Transfers, d.Target, d.Bound, n, float64(n)/time.Since(start).Seconds())
	return d
}

// interleave takes from both in turn, as far as both go.
func interleave(a, b [][]engine.Token) (out [][]engine.Token) {
	for i := range min(len(a), len(b)) {
		out = append(out, a[i], b[i])
	}
	return out
}

// drain lets running requests end.
func (l *live) drain() {
	for l.s.step(l.t, func() (int, []engine.Token) { return 0, nil }) {
	}
}

// TestLiveRebalance changes the topic of traffic: the imbalance rises, the loop
// decides at most 3 windows later, and 3 windows after that the imbalance is
// below max(1.10, 1.03 times the lower bound). No request fails and no token
// changes.
func TestLiveRebalance(t *testing.T) {
	needsSpeed(t)
	cache := t.TempDir()
	still := four(t, cache, nil)
	before := &stream{texts: interleave(prompts(t, still, 8*slow, "T1"), prompts(t, still, 8*slow, "T2"))}
	after := &stream{texts: prompts(t, still, 8*slow, "T4"), base: len(before.texts)}
	want := serve(t, still, slices.Concat(before.texts, after.texts), nil)

	b := moe.DefaultBalance()
	b.Window = 2000
	l := &live{t: t, r: four(t, cache, &b)}
	l.s = newServer(l.r, func(i int, answer string) {
		l.answered++
		if answer != want[i] {
			l.changed++
		}
	})
	settled := 0.0
	for range 12 {
		d := l.window(before)
		settled = d.Now
		if d.Reason == rebalance.Balanced && l.seen >= 2 {
			break
		}
	}
	t.Logf("topic changes from commands to arithmetic")
	shifted, bound := 0.0, 1.0
	decided := false
	for range 3 {
		d := l.window(after)
		shifted = max(shifted, d.Now)
		if d.Action == rebalance.Move {
			decided, bound = true, d.Bound
			break
		}
	}
	if shifted <= settled || shifted <= 1.10 {
		t.Errorf("imbalance %.3f before and %.3f after the topic changed: it should rise", settled, shifted)
	}
	if !decided {
		t.Fatal("no decision within 3 windows after the topic changed")
	}
	last := 0.0
	for range 3 {
		last = l.window(after).Now
	}
	if limit := max(1.10, 1.03*bound); last >= limit {
		t.Errorf("imbalance %.3f 3 windows after the decision, want below %.3f", last, limit)
	}
	l.drain()
	if l.changed > 0 || l.answered == 0 {
		t.Errorf("%d of %d answers changed", l.changed, l.answered)
	}
	s := l.r.Experts()
	t.Logf("%d answers, %d tokens, %d moves, %d KB copied, shards %+v", l.answered, l.s.tokens, s.Moves, s.Copied>>10, s.Shards)
	if s.Failures != 0 || s.Moves == 0 || s.Copied == 0 {
		t.Errorf("%d failures, %d moves, %d bytes copied", s.Failures, s.Moves, s.Copied)
	}
}

// four loads hub-cloud with 4 shards of 6 slots.
func four(t *testing.T, cache string, b *moe.Balance) *moe.Runner {
	return open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 8, Shards: 4, Slots: 6, Balance: b})
}

func TestRebalanceOnRequest(t *testing.T) {
	b := moe.DefaultBalance()
	b.Window = 1 << 40 // never by itself
	r := four(t, t.TempDir(), &b)
	if d, err := r.Rebalance(context.Background()); err != nil || d.Reason != rebalance.TooFewTokens {
		t.Errorf("without traffic: %s, %v", d.Reason, err)
	}
	serve(t, r, prompts(t, r, 20, "T4"), nil)
	d, err := r.Rebalance(context.Background())
	if err != nil || d.Action != rebalance.Move || d.Reason != rebalance.Triggered {
		t.Errorf("%s (%s), %v", d.Action, d.Reason, err)
	}
	s := r.Experts()
	if s.Generation != 1 || s.Window == nil || len(s.Imbalance) != 6 || s.Copied == 0 {
		t.Errorf("generation %d, %d imbalances, %d bytes copied", s.Generation, len(s.Imbalance), s.Copied)
	}
	for l, row := range s.Window.Demand {
		if got, want := load.Sum(row), float64(2*s.Window.Tokens); got != want {
			t.Errorf("layer %d: %v choices counted, want %v", l, got, want)
		}
	}
	if err := r.Place(context.Background(), plan.Trivial(6, 16, plan.Uniform(4, 6))); err == nil {
		t.Error("placement beside the runner's own loop: no error")
	}
	d, err = r.Propose(context.Background())
	if err != nil || d.Reason == rebalance.TooFewTokens || r.Experts().Generation != 1 {
		t.Errorf("proposal %s (%s), %v, generation %d", d.Action, d.Reason, err, r.Experts().Generation)
	}
}

// TestLostShardIsRefilled loses a shard with the only copies of some experts:
// they are read from the file, and answers are what they were.
func TestLostShardIsRefilled(t *testing.T) {
	b := moe.DefaultBalance()
	r := four(t, t.TempDir(), &b)
	texts := prompts(t, r, 300, "")
	want := serve(t, r, texts, nil)
	if err := r.Lose(1); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for r.Placement().Fleet.Slots[1] != 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	s := r.Experts()
	if err := r.Placement().Validate(); err != nil || s.Shards[1].Slots != 0 || s.Shards[1].Bytes != 0 || s.Failures != 0 {
		t.Fatalf("shards %+v, %d failures, %v", s.Shards, s.Failures, err)
	}
	if d := s.Decisions[len(s.Decisions)-1]; d.Reason != rebalance.ShardLost || d.Transfers == 0 {
		t.Errorf("decision %+v", d)
	}
	if !slices.Equal(serve(t, r, texts, nil), want) {
		t.Error("answers changed after a shard was lost and its experts read anew")
	}
}

// TestFailedMove damages every copy: nothing changes.
func TestFailedMove(t *testing.T) {
	b := moe.DefaultBalance()
	b.Window = 1 << 40
	r := open(t, moe.Options{Name: "hub-cloud", MaxSeqs: 8, Balance: &b, Copy: func(dst, src []byte) error {
		copy(dst, src)
		dst[0]++
		return nil
	}})
	texts := prompts(t, r, 20, "T4")
	want := serve(t, r, texts, nil)
	if _, err := r.Rebalance(context.Background()); !errors.Is(err, rebalance.ErrMove) || !errors.Is(err, shard.ErrDamaged) {
		t.Errorf("damaged copies: %v", err)
	}
	if s := r.Experts(); s.Generation != 0 || s.Failures != 1 {
		t.Errorf("generation %d, %d failures", s.Generation, s.Failures)
	}
	if !slices.Equal(serve(t, r, texts, nil), want) {
		t.Error("answers changed after a failed move")
	}
}
