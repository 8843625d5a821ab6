package batch

import (
	"slices"
	"testing"
)

func TestCompose(t *testing.T) {
	l := Limits{MaxBatch: 16, MaxSeqs: 4, KVTokens: 100}
	loose := Limits{MaxBatch: 16, MaxSeqs: 4, KVTokens: 100, Headroom: 8}
	decode := Running{Pending: 1, Held: 10, Most: 20}
	prompt := func(pending, most int) Running { return Running{Pending: pending, Most: most} }
	wait := func(pending, most int) Waiting { return Waiting{Pending: pending, Most: most} }
	tests := []struct {
		name   string
		state  State
		limits Limits
		want   Step
	}{
		{"nothing", State{}, l, Step{}},
		{"decodes before the rest of a prompt", State{Running: []Running{prompt(30, 40), decode}}, l,
			Step{Spans: []Span{{1, 1, true}, {0, 15, false}}}},
		{"a prompt ends with logits", State{Running: []Running{prompt(15, 40), decode}}, l,
			Step{Spans: []Span{{1, 1, true}, {0, 15, true}}}},
		{"admits in order", State{Running: []Running{decode}, Waiting: []Waiting{wait(5, 10), wait(6, 10), wait(9, 10)}}, l,
			Step{Admit: 3, Spans: []Span{{0, 1, true}, {1, 5, true}, {2, 6, true}, {3, 4, false}}}},
		{"no sequence left", State{Running: []Running{decode, decode, decode}, Waiting: []Waiting{wait(5, 10), wait(6, 10)}}, l,
			Step{Admit: 1, Spans: []Span{{0, 1, true}, {1, 1, true}, {2, 1, true}, {3, 5, true}}, Blocked: NoSequence}},
		{"kv holds back the first and nobody overtakes", State{Running: []Running{decode}, Waiting: []Waiting{wait(5, 81), wait(1, 1)}}, l,
			Step{Spans: []Span{{0, 1, true}}, Blocked: NoKV}},
		{"headroom admits what whole outputs would not", State{Running: []Running{decode}, Waiting: []Waiting{wait(5, 81)}}, loose,
			Step{Admit: 1, Spans: []Span{{0, 1, true}, {1, 5, true}}}},
		{"headroom must fit", State{Running: []Running{{1, 80, 100}}, Waiting: []Waiting{wait(5, 81)}}, loose,
			Step{Spans: []Span{{0, 1, true}}, Blocked: NoKV}},
		{"budget spent", State{Waiting: []Waiting{wait(16, 20), wait(1, 2)}}, l,
			Step{Admit: 1, Spans: []Span{{0, 16, true}}, Blocked: NoBudget}},
		{"an import needs no budget", State{Waiting: []Waiting{wait(16, 20), {0, 10, 20}}}, l,
			Step{Admit: 2, Spans: []Span{{0, 16, true}}}},
		{"chunk while others decode", State{Running: []Running{decode}, Waiting: []Waiting{wait(3, 10), wait(9, 10), wait(2, 10)}},
			Limits{MaxBatch: 16, MaxSeqs: 4, KVTokens: 100, Chunk: 4},
			Step{Admit: 2, Spans: []Span{{0, 1, true}, {1, 3, true}, {2, 1, false}}, Blocked: NoBudget}},
		{"no chunk when nobody decodes", State{Waiting: []Waiting{wait(9, 10), wait(2, 10)}},
			Limits{MaxBatch: 16, MaxSeqs: 4, KVTokens: 100, Chunk: 4},
			Step{Admit: 2, Spans: []Span{{0, 9, true}, {1, 2, true}}}},
		{"full: the last gives up", State{Running: []Running{{1, 50, 80}, {1, 47, 80}, {1, 1, 80}}, Waiting: []Waiting{wait(1, 2)}}, loose,
			Step{GiveUp: 1, Spans: []Span{{0, 1, true}, {1, 1, true}}, Blocked: NoKV}},
		{"full: the first is a prompt", State{Running: []Running{{30, 50, 90}, {1, 49, 80}}}, loose,
			Step{GiveUp: 1, Spans: []Span{{0, 16, false}}}},
		{"full: alone", State{Running: []Running{{1, 99, 100}}}, loose, Step{Spans: []Span{{0, 1, true}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Compose(tt.state, tt.limits, nil)
			if !slices.Equal(got.Spans, tt.want.Spans) || got.Admit != tt.want.Admit || got.GiveUp != tt.want.GiveUp || got.Blocked != tt.want.Blocked {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	good := Limits{MaxBatch: 8, MaxSeqs: 8, KVTokens: 1}
	if err := good.Validate(); err != nil {
		t.Errorf("%+v: %v", good, err)
	}
	for _, bad := range []Limits{{MaxBatch: 8, KVTokens: 1}, {MaxBatch: 7, MaxSeqs: 8, KVTokens: 1}, {MaxBatch: 8, MaxSeqs: 8},
		{MaxBatch: 8, MaxSeqs: 8, KVTokens: 1, Chunk: -1}, {MaxBatch: 8, MaxSeqs: 8, KVTokens: 1, Headroom: -1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
	if !good.Fits(Waiting{Most: 1}) || good.Fits(Waiting{Most: 2}) {
		t.Error("Fits does not follow KVTokens")
	}
}

func BenchmarkCompose(b *testing.B) {
	s := State{Running: make([]Running, 32), Waiting: []Waiting{{Pending: 100, Most: 200}}}
	for i := range s.Running {
		s.Running[i] = Running{1, 50, 100}
	}
	l := Limits{MaxBatch: 512, MaxSeqs: 32, KVTokens: 10000}
	buf := make([]Span, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf = Compose(s, l, buf).Spans
	}
}
