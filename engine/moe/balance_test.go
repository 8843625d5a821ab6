package moe_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/engine/moe/shard"
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/experts/rebalance"
)

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
	for l, row := range s.Computed {
		all := uint64(0)
		for _, n := range row {
			all += n
		}
		if want := uint64(2 * s.Window.Tokens); len(row) != 4 || all != want {
			t.Errorf("layer %d: shards computed %v, want %d in all", l, row, want)
		}
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
	s := r.Experts()
	for (len(s.Decisions) == 0 || s.Decisions[len(s.Decisions)-1].Reason != rebalance.ShardLost) && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
		s = r.Experts()
	}
	if err := r.Placement().Validate(); err != nil || s.Shards[1].Slots != 0 || s.Shards[1].Bytes != 0 || s.Failures != 0 {
		t.Fatalf("shards %+v, %d failures, %v", s.Shards, s.Failures, err)
	}
	if n := len(s.Decisions); n == 0 || s.Decisions[n-1].Reason != rebalance.ShardLost || s.Decisions[n-1].Transfers == 0 {
		t.Errorf("decisions %+v", s.Decisions)
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
