package batch

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestCompose(t *testing.T) {
	l := Limits{MaxBatch: 16, MaxSeqs: 4, KVTokens: 100}
	decode := Running{Pending: 1, Reserve: 20}
	tests := []struct {
		name    string
		state   State
		limits  Limits
		spans   []Span
		admit   int
		blocked Reason
	}{
		{"nothing", State{}, l, nil, 0, NoneWaiting},
		{"decodes before the rest of a prompt", State{Running: []Running{{Pending: 30, Reserve: 40}, decode}}, l,
			[]Span{{1, 1, true}, {0, 15, false}}, 0, NoneWaiting},
		{"a prompt ends with logits", State{Running: []Running{{Pending: 15, Reserve: 40}, decode}}, l,
			[]Span{{1, 1, true}, {0, 15, true}}, 0, NoneWaiting},
		{"admits in order", State{Running: []Running{decode}, Waiting: []Waiting{{5, 10}, {6, 10}, {9, 10}}}, l,
			[]Span{{0, 1, true}, {1, 5, true}, {2, 6, true}, {3, 4, false}}, 3, NoneWaiting},
		{"no sequence left", State{Running: []Running{decode, decode, decode}, Waiting: []Waiting{{5, 10}, {6, 10}}}, l,
			[]Span{{0, 1, true}, {1, 1, true}, {2, 1, true}, {3, 5, true}}, 1, NoSequence},
		{"kv holds back the first and nobody overtakes", State{Running: []Running{decode}, Waiting: []Waiting{{5, 81}, {1, 1}}}, l,
			[]Span{{0, 1, true}}, 0, NoKV},
		{"budget spent", State{Waiting: []Waiting{{16, 20}, {1, 2}}}, l,
			[]Span{{0, 16, true}}, 1, NoBudget},
		{"an import needs no budget", State{Waiting: []Waiting{{16, 20}, {0, 20}}}, l,
			[]Span{{0, 16, true}}, 2, NoneWaiting},
		{"chunk", State{Waiting: []Waiting{{9, 10}, {2, 10}}}, Limits{MaxBatch: 16, MaxSeqs: 4, KVTokens: 100, Chunk: 4},
			[]Span{{0, 4, false}, {1, 2, true}}, 2, NoneWaiting},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Compose(tt.state, tt.limits, nil)
			if !slices.Equal(got.Spans, tt.spans) || got.Admit != tt.admit || got.Blocked != tt.blocked {
				t.Errorf("got %+v, want spans %v, admit %d, blocked %q", got, tt.spans, tt.admit, tt.blocked)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	good := Limits{MaxBatch: 8, MaxSeqs: 8, KVTokens: 1}
	if err := good.Validate(); err != nil {
		t.Errorf("%+v: %v", good, err)
	}
	for _, bad := range []Limits{{MaxBatch: 8, KVTokens: 1}, {MaxBatch: 7, MaxSeqs: 8, KVTokens: 1},
		{MaxBatch: 8, MaxSeqs: 8}, {MaxBatch: 8, MaxSeqs: 8, KVTokens: 1, Chunk: -1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
	if !good.Fits(Waiting{Reserve: 1}) || good.Fits(Waiting{Reserve: 2}) {
		t.Error("Fits does not follow KVTokens")
	}
}

func TestVictim(t *testing.T) {
	for n, want := range []int{-1, -1, 1, 2} {
		if got := Victim(make([]Running, n)); got != want {
			t.Errorf("of %d: %d, want %d", n, got, want)
		}
	}
}

// request is a job of the property test's little engine.
type request struct{ id, pending, output, reserve int }

// TestServesAllInOrder runs random loads to their end and checks each step.
func TestServesAllInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{MaxSeqs: rapid.IntRange(1, 8).Draw(t, "seqs"), KVTokens: rapid.IntRange(20, 200).Draw(t, "kv"),
			Chunk: rapid.IntRange(0, 10).Draw(t, "chunk")}
		l.MaxBatch = l.MaxSeqs + rapid.IntRange(0, 30).Draw(t, "budget")
		var waiting, running []request
		total := rapid.IntRange(0, 30).Draw(t, "requests")
		for id := range total {
			p := rapid.IntRange(0, 15).Draw(t, "prompt")
			o := rapid.IntRange(1, 5).Draw(t, "output")
			waiting = append(waiting, request{id, p, o, max(p, 1) + o})
		}
		next, done := 0, 0
		for steps := 0; done < total; steps++ {
			if steps > 50*total+50 {
				t.Fatalf("starved: %d of %d done, running %v, waiting %v", done, total, running, waiting)
			}
			step := Compose(stateOf(running, waiting), l, nil)
			check(t, step, running, waiting, l)
			for _, r := range waiting[:step.Admit] {
				if r.id != next {
					t.Fatalf("admitted %d before %d", r.id, next)
				}
				next++
				if r.pending == 0 {
					r.pending = 1 // imported: the first token is sampled at once
					r.output--
				}
				running = append(running, r)
			}
			waiting = waiting[step.Admit:]
			for _, s := range step.Spans {
				r := &running[s.Index]
				if r.pending -= s.Tokens; s.Logits {
					r.pending = 1
					r.output--
				}
			}
			before := len(running)
			running = slices.DeleteFunc(running, func(r request) bool { return r.output <= 0 })
			done += before - len(running)
		}
	})
}

func stateOf(running, waiting []request) State {
	var s State
	for _, r := range running {
		s.Running = append(s.Running, Running{r.pending, r.reserve})
	}
	for _, r := range waiting {
		s.Waiting = append(s.Waiting, Waiting{r.pending, r.reserve})
	}
	return s
}

func check(t *rapid.T, step Step, running, waiting []request, l Limits) {
	all := append(slices.Clone(running), waiting[:step.Admit]...)
	tokens, reserved := 0, 0
	seen := map[int]bool{}
	for _, s := range step.Spans {
		tokens += s.Tokens
		if seen[s.Index] || s.Tokens < 1 || s.Tokens > all[s.Index].pending || s.Logits != (s.Tokens == all[s.Index].pending) {
			t.Fatalf("bad span %+v for %+v", s, all[s.Index])
		}
		seen[s.Index] = true
	}
	for i, r := range all {
		reserved += r.reserve
		if i < len(running) && r.pending == 1 && !seen[i] {
			t.Fatalf("decode %d left out", i)
		}
	}
	if tokens > l.MaxBatch || len(all) > l.MaxSeqs || reserved > l.KVTokens {
		t.Fatalf("%d tokens, %d sequences, %d reserved exceed %+v", tokens, len(all), reserved, l)
	}
	if (step.Blocked == NoneWaiting) != (step.Admit == len(waiting)) {
		t.Fatalf("blocked %q with %d of %d admitted", step.Blocked, step.Admit, len(waiting))
	}
}

func BenchmarkCompose(b *testing.B) {
	s := State{Running: make([]Running, 32), Waiting: []Waiting{{100, 200}}}
	for i := range s.Running {
		s.Running[i] = Running{1, 100}
	}
	l := Limits{MaxBatch: 512, MaxSeqs: 32, KVTokens: 10000}
	buf := make([]Span, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf = Compose(s, l, buf).Spans
	}
}
