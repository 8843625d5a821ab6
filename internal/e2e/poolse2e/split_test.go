package poolse2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/weirhq/weir/engine/models/heldout"
)

// TestSplitEqualsMixedRealWorkers asks the same of a pool that splits prompts
// from answers and of one mixed worker, through a gateway: alone the answers have
// the same bits, under load they may part at ties. Every KV is handed over, and
// no prompt token is computed where the answer is.
func TestSplitEqualsMixedRealWorkers(t *testing.T) {
	library(t)
	f := emptyFleet(t, loopback{})
	models := []served{exactly(model, "hub-edge", "llama"), exactly("cloud-llama", "hub-cloud", "llama"), exactly("cloud-moe", "hub-cloud", "moe")}
	for i, s := range models {
		f.pool(t, s, fmt.Sprint("p", i), fmt.Sprint("d", i))
		s.model += "-whole"
		f.pool(t, s, fmt.Sprint("m", i))
	}
	f.gateways(t, true)
	for i, s := range models {
		t.Run(s.model, func(t *testing.T) {
			f.splitEqualsMixed(t, s, f.all[fmt.Sprint("d", i)])
		})
	}
}

func (f *fleet) splitEqualsMixed(t *testing.T, s served, decode *process) {
	questions := f.questions(t, s.model, count(8, 48))
	whole := make([]answer, len(questions))
	for i, q := range questions {
		before := f.tally(t, decode)
		split := f.pose(t.Context(), "g1", q)
		f.handedOver(t, decode, before, 1)
		q.model += "-whole"
		whole[i] = f.pose(t.Context(), "g1", q)
		if !split.whole() || !whole[i].whole() || split.prompt != whole[i].prompt || split.made != whole[i].made || split.made == 0 {
			t.Fatalf("split: %+v\nmixed: %+v", split, whole[i])
		}
		sameBits(t, fmt.Sprint("prompt ", i), split.picks, whole[i].picks)
	}
	before := f.tally(t, decode)
	answers := make([]answer, len(questions))
	var wg sync.WaitGroup
	for i, q := range questions {
		q.stream = i%2 == 0
		wg.Go(func() { answers[i] = f.pose(t.Context(), gatewayOf(i), q) })
	}
	wg.Wait()
	f.handedOver(t, decode, before, len(questions))
	same, closeOnes := 0, 0
	for i, a := range answers {
		switch {
		case !a.whole():
			t.Errorf("prompt %d: %+v", i, a)
		case s.runner == "llama" && whole[i].close():
			closeOnes++
		case sameOrTied(t, fmt.Sprint("under load, prompt ", i), a.picks, whole[i].picks):
			same++
		}
	}
	t.Logf("%s: %d answers alone are the same; under load %d of %d, %d have a close choice, the others part at a tie", s.model, len(whole), same, len(answers), closeOnes)
	if closeOnes > len(answers)/2 {
		t.Error("too few answers can be compared")
	}
}

// questions are prompts that are worth a hand-off: several held-out ones in one.
func (f *fleet) questions(t *testing.T, model string, n int) []question {
	t.Helper()
	examples, err := heldout.Test()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]question, n)
	for i := range out {
		var prompt string
		for at := i * len(examples) / n; len(prompt) < 128; at++ {
			prompt += examples[at%len(examples)].Prompt + ", "
		}
		out[i] = question{model: model, prompt: prompt, tokens: 200, ends: true, logprobs: true}
	}
	return out
}

// handedOver wants n hand-offs since before, all of them whole.
func (f *fleet) handedOver(t *testing.T, decode *process, before tally, n int) {
	t.Helper()
	d := f.tally(t, decode).minus(before)
	if int(d.pulls) != n || d.pulled == 0 || d.fallbacks != 0 || d.recomputed > float64(n) {
		t.Errorf("of %d hand-offs the decode worker counts %+v", n, d)
	}
}
