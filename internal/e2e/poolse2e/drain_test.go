package poolse2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/models/heldout"
	"github.com/weirhq/weir/internal/testproc"
)

// mostRecomputed is how many tokens a moved answer may cost its heir.
const mostRecomputed = 16

// TestDrainRealWorkers: an answer moves with its KV when its worker drains, by
// command or because it ends. The client gets the text of an answer that was
// left alone and pays its prompt once.
func TestDrainRealWorkers(t *testing.T) {
	library(t)
	f := emptyFleet(t, loopback{})
	pools := []served{exactly(model, "hub-edge", "llama"), exactly("cloud-llama", "hub-cloud", "llama"), exactly("cloud-moe", "hub-cloud", "moe")}
	if soak {
		pools = append(pools, exactly("random", f.randomModel(t, 5e6, gguf.F32), "llama"))
	}
	for i, s := range pools {
		f.pool(t, s, fmt.Sprint("m", 2*i+1), fmt.Sprint("m", 2*i+2))
	}
	f.gateways(t, true)
	for _, s := range pools {
		q := question{model: s.model, prompt: "tell me all about it" + strings.Repeat(" and then", 30), tokens: count(1000, 1500)}
		if s.model == "random" {
			q.tokens = 700 // it is slow
		}
		if s.model == "cloud-llama" || soak && s.model != model { // hub-edge makes all its tokens before anything can be done
			t.Run(s.model+" by command", func(t *testing.T) { f.movesAlone(t, q, f.drainByCommand) })
		}
		if s.model == "cloud-moe" || soak && s.model != model {
			t.Run(s.model+" by SIGTERM", func(t *testing.T) { f.movesAlone(t, q, f.drainBySignal) })
		}
		if s.model != "random" {
			t.Run(s.model+" under load", func(t *testing.T) { f.movesMany(t, s) })
		}
	}
}

// drainByCommand has 'weir pools drain' drain a worker, and take that back.
func (f *fleet) drainByCommand(t *testing.T, p *process) (undo func()) {
	order := func(more ...string) {
		bin, err := testproc.Binary()
		if err != nil {
			t.Error(err)
			return
		}
		args := []string{"pools", "drain", p.name, "--cloud-url", f.all["g2"].url, "--admin-token-file", filepath.Join(f.dir, "secrets", "admin-token")}
		if out, err := exec.Command(bin, append(args, more...)...).CombinedOutput(); err != nil {
			t.Errorf("weir pools drain: %v: %s", err, out)
		}
	}
	order()
	return func() { order("--undo") }
}

// drainBySignal ends a worker, which gives its streams away first, and starts
// another one.
func (f *fleet) drainBySignal(t *testing.T, p *process) (undo func()) {
	p.signal(t, syscall.SIGTERM)
	return func() { <-p.child.Done(); p.start(t) }
}

// tally counts hand-offs and moves.
type tally struct{ fallbacks, recomputed, pulls, pulled, moved, down float64 }

// tally is what a worker has counted of what came from others.
func (f *fleet) tally(t *testing.T, p *process) tally {
	t.Helper()
	n := func(metric, label string) float64 { return f.worker(t, p.name, metric, label) }
	return tally{n("weir:pd_fallback_total", ""), n("weir:prompt_tokens_computed_total", "decode_leg"), n("weir:kv_pull_seconds_count", ""),
		n("weir:kv_pull_bytes_total", ""), n("weir:migration_downtime_seconds_count", ""), n("weir:migration_downtime_seconds_sum", "")}
}

// minus is what has been counted since.
func (a tally) minus(b tally) tally {
	return tally{a.fallbacks - b.fallbacks, a.recomputed - b.recomputed, a.pulls - b.pulls, a.pulled - b.pulled, a.moved - b.moved, a.down - b.down}
}

// stood is how long an answer that moved stood still, on average.
func (a tally) stood() time.Duration {
	return time.Duration(a.down / a.moved * float64(time.Second)).Round(100 * time.Microsecond)
}

// movesAlone drains the worker that streams the answer, which nobody else
// disturbs. A fast one may have ended before it could move: then again.
func (f *fleet) movesAlone(t *testing.T, q question, drain func(*testing.T, *process) func()) {
	alone := f.pose(t.Context(), "g1", q)
	if !alone.whole() || alone.made != q.tokens {
		t.Fatalf("before anything happened: %+v", alone)
	}
	q.stream = true
	for range 10 {
		f.idle(t)
		var from, heir *process
		var before tally
		var undo func()
		got := f.pose(t.Context(), "g1", q, func() {
			from, heir = f.sides(q.model)
			if from == nil || heir == nil {
				return
			}
			before = f.tally(t, heir)
			undo = drain(t, from)
		})
		if !got.whole() || got.text != alone.text || got.made != alone.made || got.prompt != alone.prompt {
			t.Errorf("moved: %+v\nalone: %+v", got, alone)
		}
		if undo == nil {
			continue // it had ended
		}
		n := f.tally(t, heir).minus(before)
		undo()
		f.ready(t, "g1")
		f.ready(t, "g2")
		if n.moved == 0 {
			continue
		}
		f.paidOnce(t, got, 2)
		if n.moved != 1 || n.pulls != 1 || n.pulled == 0 || n.fallbacks != 0 || n.recomputed > mostRecomputed {
			t.Errorf("the heir counts %+v", n)
		}
		t.Logf("%s left %s: it stood still for %v; %.0f bytes pulled, %.0f tokens computed again",
			q.model, from.name, n.stood(), n.pulled, n.recomputed)
		return
	}
	t.Error("no answer was long enough to be moved")
}

// sides are the worker of a pool that has a request, and another one.
func (f *fleet) sides(model string) (from, heir *process) {
	for _, in := range f.pools("g1") {
		switch {
		case in.Model != model:
		case in.InFlight.Requests > 0:
			from = f.all[in.Name]
		default:
			heir = f.all[in.Name]
		}
	}
	return from, heir
}

// paidOnce wants one row of an answer that ended well, and the others of its
// parts before it moved or of workers that drained already and made nothing, with
// all its tokens and its prompt once among them.
func (f *fleet) paidOnce(t *testing.T, a answer, rows int) {
	t.Helper()
	all := f.rows(t, a.operation, rows)
	prompts, prompt, made := 0, 0, 0
	for i, r := range all {
		refused := r.Outcome == "upstream_error" && r.Input+r.Output == 0
		if i > 0 && r.Outcome != "superseded" && !refused || i == 0 && r.Outcome != "ok" {
			t.Errorf("rows %+v", all)
		}
		prompt, made = prompt+r.Input, made+r.Output
		if r.Input > 0 {
			prompts++
		}
	}
	if prompts != 1 || prompt != a.prompt || made != a.made {
		t.Errorf("rows %+v, the answer has %d+%d tokens", all, a.prompt, a.made)
	}
}

// movesMany drains the workers of a pool in turn, under streams that answer held-out
// prompts to their natural end, until enough of them have moved. They may part from
// the answers that were left alone at ties.
func (f *fleet) movesMany(t *testing.T, s served) {
	f.idle(t)
	questions, alone := f.leftAlone(t, longest(t, s.model, count(12, 48)))
	var workers []*process
	for _, in := range f.pools("g1") {
		if in.Model == s.model {
			workers = append(workers, f.all[in.Name])
		}
	}
	before := []tally{f.tally(t, workers[0]), f.tally(t, workers[1])}
	moved := 0.0
	answers := f.busy(t, 12, func(nr int) question { return questions[nr%len(questions)] }, func() {
		turn := 0
		eventually(t, "enough streams have moved", func() bool {
			from := workers[turn%2]
			turn++
			eventually(t, from.name+" has streams", func() bool { return f.runs(from.name) > 1 })
			f.order(t, from.name, "drain", `{"draining":true}`)
			eventually(t, from.name+" has none any more", func() bool { return f.runs(from.name) == 0 })
			f.order(t, from.name, "drain", `{"draining":false}`)
			f.ready(t, "g1")
			f.ready(t, "g2")
			moved = 0
			for i, w := range workers {
				moved += f.tally(t, w).minus(before[i]).moved
			}
			return moved >= float64(count(6, 24))
		})
	})
	f.idle(t)
	for i, w := range workers {
		if d := f.tally(t, w).minus(before[i]); d.pulls != d.moved || d.moved > 0 && d.pulled == 0 || d.fallbacks != 0 || d.recomputed > mostRecomputed*d.moved {
			t.Errorf("%s counts %+v", w.name, d)
		}
	}
	f.movedPaidOnce(t, answers)
	t.Logf("%s: %.0f of %d streams moved", s.model, moved, len(answers))
	s.compare(t, answers, alone)
}

// leftAlone asks the questions one after another, with nothing else to do for
// anybody. It returns them as questions for streams, with the answers.
func (f *fleet) leftAlone(t *testing.T, questions []question) ([]question, []answer) {
	t.Helper()
	alone := make([]answer, len(questions))
	for i, q := range questions {
		q.logprobs = true
		if alone[i] = f.pose(t.Context(), "g1", q); !alone[i].whole() || len(alone[i].picks) == 0 {
			t.Fatalf("before anything happened: %+v", alone[i])
		}
		questions[i].stream = true
	}
	return questions, alone
}

// compare wants the texts of the answers that were left alone: on moe to the
// letter, on llama.cpp up to a tie where nothing but a tie can be close.
func (s served) compare(t *testing.T, answers []asked, alone []answer) {
	t.Helper()
	same, closeOnes := 0, 0
	for _, a := range answers {
		want := &alone[a.nr%len(alone)]
		switch {
		case !a.whole():
			t.Errorf("question %d: %+v", a.nr, a)
		case s.runner == "moe" && a.text != want.text:
			t.Errorf("question %d: %q, alone %q", a.nr, a.text, want.text)
		case s.runner == "llama" && want.close():
			closeOnes++
		case sameTextOrTied(t, fmt.Sprint("question ", a.nr), a.text, want.picks):
			same++
		}
	}
	t.Logf("%s: of %d streams %d are the same as alone, %d have a close choice, the others part at a tie", s.model, len(answers), same, closeOnes)
	if closeOnes > len(answers)/2 {
		t.Error("too few answers can be compared")
	}
}

// longest are the held-out prompts that have the longest answers.
func longest(t *testing.T, model string, n int) []question {
	t.Helper()
	examples, err := heldout.Test()
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(examples, func(a, b models.Example) int { return len(b.Answer) - len(a.Answer) })
	out := make([]question, n)
	for i := range out {
		out[i] = question{model: model, prompt: examples[i].Prompt, tokens: 200, ends: true}
	}
	return out
}
