package poolse2e

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirhq/weir/engine/worker/cost"
)

// loaded is a machine that has so much more to do that no test's steps are slow
// against its cost model, and a sign of failure.
const loaded = 10

// costModel writes a cost model of hub-cloud: so many times what 'weir worker
// bench' measures of the moe runner on one quiet core.
func (f *fleet) costModel(t *testing.T, times float64) (file string) {
	t.Helper()
	file = filepath.Join(f.dir, fmt.Sprint("cost-", times, ".json"))
	m := cost.Model{Threads: 1, Pieces: []cost.Piece{
		{UpTo: 64, Fixed: .03 * times, PerDecode: .13 * times, PerPrefill: .11 * times, PerContext: .0013 * times},
		{Fixed: 1.6 * times, PerDecode: .13 * times, PerPrefill: .07 * times, PerContext: .0027 * times, PerPair: .0005 * times}}}
	if err := m.Write(file); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestStreamsEvenOutRealWorkers: a decode worker has several times the streams that
// it has places for when another one begins to decode. Streams move there by
// themselves, with their KV; each text is that of the answer that was left alone,
// and its prompt is paid once.
func TestStreamsEvenOutRealWorkers(t *testing.T) {
	library(t)
	f := emptyFleet(t, loopback{})
	flags := []string{"--cost-model", f.costModel(t, loaded)}
	pools := []served{{model: model, file: "hub-cloud", runner: "moe", seqs: 4, cache: "off", flags: flags}}
	if soak {
		pools = append(pools, served{model: "cloud-llama", file: "hub-cloud", runner: "llama", seqs: 2, cache: "off", flags: flags})
	}
	for i, s := range pools {
		f.pool(t, s, fmt.Sprint("d", i), fmt.Sprint("p", i))
	}
	f.movesOn = "auto"
	f.gateways(t, true)
	for i, s := range pools {
		questions := atLength(s.model, 3, 500, count(8, 24))
		if s.runner == "llama" { // it is exact after held-out prompts only
			questions = longest(t, s.model, 60)
		}
		t.Run(s.model, func(t *testing.T) { f.evensOut(t, s, f.all[fmt.Sprint("d", i)], f.all[fmt.Sprint("p", i)], questions) })
	}
}

// atLength are some questions with answers of so many tokens, each of them several
// times.
func atLength(model string, different, tokens, n int) []question {
	out := make([]question, n)
	for i := range out {
		out[i] = question{model: model, prompt: fmt.Sprint("tell me all about ", i%different), tokens: tokens}
	}
	return out
}

// evensOut crowds a worker and lets another one decode, too. Fast answers may have
// ended before one could move: then again.
func (f *fleet) evensOut(t *testing.T, s served, from, heir *process, questions []question) {
	questions, alone := f.leftAlone(t, questions)
	for range 10 {
		f.setRole(t, heir.name, "prefill")
		for _, g := range []string{"g1", "g2"} {
			eventually(t, heir.name+" is free for prompts only at "+g, func() bool { return f.pooled(g, heir.name).Role == "prefill" })
		}
		f.idle(t)
		there, here, counted := f.tally(t, from), f.tally(t, heir), f.counted("balance")
		answers := f.burst(t, questions, func(ended func() bool) {
			eventually(t, from.name+" has more than it has places for", func() bool { return f.runs(from.name) >= 2*s.seqs || ended() })
			f.setRole(t, heir.name, "decode")
		})
		f.idle(t)
		there, here = f.tally(t, from).minus(there), f.tally(t, heir).minus(here)
		s.compare(t, answers, alone)
		f.balanced(t, there, here, f.counted("balance")-counted)
		if here.moved == 0 {
			continue
		}
		t.Logf("%s: %.0f of %d streams moved to %s and %.0f back, and stood still for %v on average; %.0f bytes pulled, %.0f tokens computed again",
			s.model, here.moved, len(answers), heir.name, there.moved, here.stood(), here.pulled, here.recomputed)
		f.movedPaidOnce(t, answers)
		return
	}
	t.Error("no answer was long enough to be moved")
}

// balanced checks what both workers count of streams that moved between them.
func (f *fleet) balanced(t *testing.T, there, here tally, counted float64) {
	t.Helper()
	if here.pulls != here.moved || here.moved > 0 && here.pulled == 0 || counted != here.moved+there.moved {
		t.Errorf("the heir counts %+v, the other %+v, the gateways %v moves", here, there, counted)
	}
	for _, n := range []tally{there, here} {
		if n.fallbacks != 0 || n.recomputed > mostRecomputed*n.moved {
			t.Errorf("a worker counts %+v", n)
		}
	}
}

// counted are the streams that the gateways have moved for a cause.
func (f *fleet) counted(cause string) (sum float64) {
	for _, g := range []string{"g1", "g2"} {
		for _, n := range f.series(f.all[g].ops, "weir_moves_total", fmt.Sprintf(`cause=%q,result="moved"`, cause)) {
			sum += n
		}
	}
	return sum
}

// burst asks all questions at once, at both gateways. During may ask whether all
// answers have ended.
func (f *fleet) burst(t *testing.T, questions []question, during func(ended func() bool)) []asked {
	t.Helper()
	out := make([]asked, len(questions))
	var left atomic.Int64
	left.Store(int64(len(questions)))
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, q := range questions {
		wg.Go(func() {
			defer left.Add(-1)
			out[i] = asked{i, f.pose(t.Context(), gatewayOf(i), q)}
		})
	}
	during(func() bool { return left.Load() == 0 })
	wg.Wait()
	return out
}
