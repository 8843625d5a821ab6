package loop_test

import (
	"math"
	"testing"

	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/engine/worker/state"
)

// TestModelledSteps: beside the time of its steps the loop tells what the cost
// model says of the same steps: a prompt of four tokens in one, then two decodes.
func TestModelledSteps(t *testing.T) {
	board := state.NewBoard()
	r := beginWith(t, runnertest.Options{Endless: true}, loop.Options{Board: board,
		Cost: &cost.Model{Pieces: []cost.Piece{{Fixed: 100, PerDecode: 10, PerPrefill: 1, PerContext: .1, PerPair: .01}}}})
	s, err := r.Submit(t.Context(), loop.Request{Prompt: prompt(r.runner, "abc"), MaxTokens: 3})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := collect(s); err != nil {
		t.Fatal(err)
	}
	r.end(t)
	rd := board.NewReader()
	want := 100 + 4 + .01*8
	for _, held := range []float64{4, 5} {
		want += (100 + 10 + .1*held - want) / 10
	}
	if got := rd.Next().ModelMS; math.Abs(got-want) > 1e-9 {
		t.Errorf("the model says %v ms, want %v", got, want)
	}
}
