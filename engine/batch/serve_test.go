package batch

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// request is a job of the property test's little engine.
type request struct {
	rank           Rank
	prompt, output int
	pending, held  int
	imported       bool
	finished       bool
	givenUp        int
}

func (r *request) most() int { return r.prompt + r.output }

// failer is what testing.T and rapid.T have in common.
type failer interface{ Fatalf(string, ...any) }

// little is an engine without a model: it does what Compose says.
type little struct {
	l                Limits
	now              time.Duration
	running, waiting []*request
}

func (e *little) state() State {
	order := func(a, b *request) int { return Compare(a.rank, b.rank, e.now) }
	slices.SortStableFunc(e.running, order)
	slices.SortStableFunc(e.waiting, order)
	var s State
	for _, r := range e.running {
		s.Running = append(s.Running, Running{r.pending, r.held, r.most()})
	}
	for _, r := range e.waiting {
		w := Waiting{Pending: r.pending, Most: r.most()}
		if r.imported {
			w.Pending, w.Held = 0, r.pending
		}
		s.Waiting = append(s.Waiting, w)
	}
	return s
}

// step runs one step and returns how many tokens it computed or imported.
func (e *little) step(t failer, generated map[*request]int) int {
	s := Compose(e.state(), e.l, nil)
	e.check(t, s)
	for range s.GiveUp {
		r := e.running[len(e.running)-1]
		e.running = e.running[:len(e.running)-1]
		r.pending, r.held, r.givenUp = r.prompt+generated[r], 0, r.givenUp+1
		e.waiting = append(e.waiting, r)
	}
	did := 0
	for _, r := range e.waiting[:s.Admit] {
		if r.imported { // the first token is sampled at once
			r.imported, r.held, r.pending = false, r.pending, 1
			did += r.held
			generated[r]++
		}
		e.running = append(e.running, r)
	}
	e.waiting = e.waiting[s.Admit:]
	for _, sp := range s.Spans {
		r := e.running[sp.Index]
		r.held += sp.Tokens
		did += sp.Tokens
		if r.pending -= sp.Tokens; sp.Logits {
			r.pending = 1
			generated[r]++
		}
	}
	for _, r := range e.running {
		r.finished = generated[r] >= r.output
	}
	e.running = slices.DeleteFunc(e.running, func(r *request) bool { return r.finished })
	return did
}

// check looks at what a step promises.
func (e *little) check(t failer, s Step) {
	if s.GiveUp > 0 && (s.GiveUp >= len(e.running) || s.Admit > 0) {
		t.Fatalf("gives %d of %d up, admits %d", s.GiveUp, len(e.running), s.Admit)
	}
	kept := e.running[:len(e.running)-s.GiveUp]
	all := append(slices.Clone(kept), e.waiting[:s.Admit]...)
	tokens, held := 0, 0
	seen := map[int]bool{}
	for _, sp := range s.Spans {
		r := all[sp.Index]
		tokens += sp.Tokens
		if seen[sp.Index] || sp.Tokens < 1 || sp.Tokens > r.pending || sp.Logits != (sp.Tokens == r.pending) {
			t.Fatalf("bad span %+v for %+v", sp, r)
		}
		seen[sp.Index] = true
	}
	for i, r := range all {
		held += r.held
		if r.imported {
			held += r.pending
		}
		if i < len(kept) && r.pending == 1 && !seen[i] {
			t.Fatalf("decode %d left out", i)
		}
	}
	if len(kept) > 0 && !seen[0] {
		t.Fatalf("the first in order stands still")
	}
	if tokens > e.l.MaxBatch || len(all) > e.l.MaxSeqs || held+tokens > e.l.KVTokens {
		t.Fatalf("%d tokens, %d sequences, %d held exceed %+v", tokens, len(all), held, e.l)
	}
	if (s.Blocked == NoneWaiting) != (s.Admit == len(e.waiting)) {
		t.Fatalf("blocked %q with %d of %d admitted", s.Blocked, s.Admit, len(e.waiting))
	}
}

// TestServesAll runs random loads to their end and checks each step. Whole
// reservations never give anybody up.
func TestServesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{MaxSeqs: rapid.IntRange(1, 8).Draw(t, "seqs"), KVTokens: rapid.IntRange(25, 120).Draw(t, "kv"),
			Chunk: rapid.IntRange(0, 10).Draw(t, "chunk"), Headroom: rapid.IntRange(0, 6).Draw(t, "headroom")}
		l.MaxBatch = l.MaxSeqs + rapid.IntRange(0, 30).Draw(t, "budget")
		e := &little{l: l}
		total := rapid.IntRange(0, 25).Draw(t, "requests")
		var all []*request
		for id := range total {
			r := &request{prompt: rapid.IntRange(1, 15).Draw(t, "prompt"), output: rapid.IntRange(1, 10).Draw(t, "output"),
				imported: rapid.Bool().Draw(t, "imported"), rank: Rank{Priority: rapid.IntRange(-2, 2).Draw(t, "priority"), Serial: uint64(id)}}
			r.rank.Arrived = time.Duration(rapid.IntRange(0, 100).Draw(t, "arrived")) * time.Millisecond
			r.rank.Due = r.rank.Arrived + time.Duration(rapid.IntRange(1, 50).Draw(t, "due"))*time.Millisecond
			r.pending = r.prompt
			all = append(all, r)
		}
		generated := map[*request]int{}
		for steps := 0; slices.ContainsFunc(all, func(r *request) bool { return !r.finished }); steps++ {
			if steps > 500*total+200 {
				t.Fatalf("starved: running %v, waiting %v", e.running, e.waiting)
			}
			e.now += time.Millisecond
			for _, r := range all {
				if r.rank.Arrived == e.now {
					e.waiting = append(e.waiting, r)
				}
				if r.rank.Arrived == 0 && e.now == time.Millisecond {
					e.waiting = append(e.waiting, r)
				}
			}
			busy := len(e.running)+len(e.waiting) > 0
			if did := e.step(t, generated); busy && did == 0 {
				t.Fatalf("nothing done with %d running, %d waiting", len(e.running), len(e.waiting))
			}
		}
		for _, r := range all {
			if l.Headroom == 0 && r.givenUp > 0 {
				t.Fatalf("%+v was given up although all is reserved", r)
			}
			if generated[r] != r.output {
				t.Fatalf("%d of %d tokens for %+v", generated[r], r.output, r)
			}
		}
	})
}

// TestNobodyStarves: urgent requests keep coming and take all there is; one that
// is not urgent is served all the same.
func TestNobodyStarves(t *testing.T) {
	e := &little{l: Limits{MaxBatch: 4, MaxSeqs: 1, KVTokens: 20}}
	patient := &request{prompt: 2, output: 2, pending: 2, rank: Rank{Priority: 3}}
	e.waiting = []*request{patient}
	generated := map[*request]int{}
	for serial := uint64(1); !patient.finished; serial += 2 {
		if e.now > 5*Aging {
			t.Fatal("starved")
		}
		for i := range uint64(2) { // four steps of work for each three
			e.waiting = append(e.waiting, &request{prompt: 2, output: 2, pending: 2, rank: Rank{Arrived: e.now, Due: e.now, Serial: serial + i}})
		}
		for range 3 {
			e.now += 100 * time.Millisecond
			e.step(t, generated)
		}
	}
	if e.now < 2*Aging {
		t.Errorf("it was served after %v already: the others were not urgent", e.now)
	}
}

func TestCompare(t *testing.T) {
	now := time.Minute
	a := Rank{Priority: 0, Arrived: now, Due: now + time.Second, Serial: 5}
	for name, b := range map[string]Rank{
		"less urgent":     {Priority: 1, Arrived: now, Due: now, Serial: 1},
		"due later":       {Arrived: now, Due: now + 2*time.Second, Serial: 1},
		"arrived later":   {Arrived: now, Due: now + time.Second, Serial: 6},
		"aged not enough": {Priority: 2, Arrived: now - Aging, Due: 0, Serial: 1},
	} {
		if Compare(a, b, now) >= 0 || Compare(b, a, now) <= 0 {
			t.Errorf("%s: comes first", name)
		}
	}
	if aged := (Rank{Priority: 1, Arrived: now - 2*Aging}); Compare(a, aged, now) <= 0 {
		t.Error("what has waited long does not come first")
	}
}
