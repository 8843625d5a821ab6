package moe_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/moe"
)

// TestStoppedStepIsNotCounted: tokens that no layer, or some layers only, have
// routed are no part of a window of loads.
func TestStoppedStepIsNotCounted(t *testing.T) {
	r := open(t, moe.Options{Name: "hub-cloud", CacheDir: t.TempDir(), MaxSeqs: 1, Context: 64})
	var flag atomic.Uint32
	r.StopAt(&flag)
	span := engine.Span{Tokens: []engine.Token{5, 6, 7, 8}}
	before := r.Counted()
	flag.Store(1)
	if _, err := r.Step([]engine.Span{span}); !errors.Is(err, engine.ErrStopped) {
		t.Fatal(err)
	}
	if n := r.Counted() - before; n != 0 {
		t.Errorf("%d tokens of a stopped step are counted", n)
	}
	flag.Store(0)
	enginetest.Step(t, r, span)
	if n := r.Counted() - before; n != 4 {
		t.Errorf("%d tokens are counted, want 4", n)
	}
}
