package route

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// linear costs a fixed time, and so much a token.
type linear struct{ fixed, decode, prefill, context float64 }

func (l linear) StepMs(decodes, prefill, context, pairs int) float64 {
	return l.fixed + l.decode*float64(decodes) + l.prefill*float64(prefill) + l.context*float64(context)
}

// reports is an instance that has just told its load.
func reports(id string, role Role, running, waiting, queued int) InstanceView {
	in := inst(id, role, 0)
	in.Load = Load{At: 9 * time.Second, Running: running, Waiting: waiting, PrefillTokens: queued}
	return in
}

func with(in InstanceView, f func(*InstanceView)) InstanceView { f(&in); return in }

func TestMeasured(t *testing.T) {
	hit := func(n int) func(*InstanceView) { return func(in *InstanceView) { in.HitBytes = n } }
	costs := func(c Cost, ctx int) func(*InstanceView) {
		return func(in *InstanceView) { in.Cost, in.Load.DecodeContext = c, ctx }
	}
	d := reports("d", Decode, 0, 0, 0)
	fast := linear{fixed: 10, decode: 1, prefill: .1, context: .001}
	pulls := func(ms map[string]float64) func(*InstanceView) {
		return func(in *InstanceView) {
			in.Cost, in.Copies = fast, map[string]Copy{}
			for addr, per := range ms {
				in.Copies[addr] = Copy{Least: per, Most: per}
			}
		}
	}
	at := func(addr string) func(*InstanceView) {
		return func(in *InstanceView) { in.Cost, in.KVAddr = fast, addr }
	}
	tests := []struct {
		name   string
		req    RequestView
		inst   []InstanceView
		want   Action
		reason Reason
	}{
		{"product: the shorter backlog", RequestView{}, []InstanceView{d, reports("p1", Prefill, 1, 0, 5000), reports("p2", Prefill, 2, 0, 10)},
			Send{Prefill: "p2", Decode: "d"}, ReasonProduct},
		{"product: equal work, the smaller batch", RequestView{}, []InstanceView{d, reports("p1", Prefill, 3, 1, 100), reports("p2", Prefill, 1, 0, 100)},
			Send{Prefill: "p2", Decode: "d"}, ReasonProduct},
		{"affinity beats load", RequestView{}, []InstanceView{d, with(reports("p1", Prefill, 3, 0, 900), hit(3000)), reports("p2", Prefill, 0, 0, 0)},
			Send{Prefill: "p1", Decode: "d"}, ReasonAffinity},
		{"the gate breaks", RequestView{}, []InstanceView{d, with(reports("p1", Prefill, 3, 0, 90000), hit(3000)), reports("p2", Prefill, 0, 0, 0), reports("p3", Prefill, 0, 0, 1)},
			Send{Prefill: "p2", Decode: "d"}, ReasonGateBroken},
		{"too small a hit is none", RequestView{}, []InstanceView{d, with(reports("p1", Prefill, 3, 0, 900), hit(64)), reports("p2", Prefill, 0, 0, 0)},
			Send{Prefill: "p2", Decode: "d"}, ReasonProduct},
		{"stale: least in flight", RequestView{}, []InstanceView{d, with(reports("p1", Prefill, 0, 0, 0), func(in *InstanceView) { in.Load.At = 1; in.InFlight.Requests = 4 }), reports("p2", Prefill, 9, 9, 9)},
			Send{Prefill: "p2", Decode: "d"}, ReasonStale},
		{"short suffix", RequestView{}, []InstanceView{with(d, hit(3900)), reports("p", Prefill, 0, 0, 0)}, Send{Decode: "d"}, ReasonShortSuffix},
		{"moved with its KV", RequestView{Moved: true}, []InstanceView{d, reports("p", Prefill, 0, 0, 0)}, Send{Decode: "d"}, ReasonWhole},
		{"a hand-off dearer than the prefill", RequestView{}, []InstanceView{with(d, pulls(map[string]float64{"": .5})),
			with(reports("p", Prefill, 0, 0, 0), costs(fast, 0))}, Send{Decode: "d"}, ReasonShortSuffix},
		{"a hand-off cheaper than the queue", RequestView{}, []InstanceView{with(reports("d", Decode, 0, 0, 9000), pulls(map[string]float64{"": .005})),
			with(reports("p", Prefill, 0, 0, 0), costs(fast, 0))}, Send{Prefill: "p", Decode: "d"}, ReasonSplit},
		{"a hand-off dearer from this peer", RequestView{}, []InstanceView{with(reports("d", Decode, 0, 0, 0), pulls(map[string]float64{"": .005, "far": .5})),
			with(reports("p", Prefill, 0, 0, 0), at("far"))}, Send{Decode: "d"}, ReasonShortSuffix},
		{"a hand-off cheaper from this peer", RequestView{}, []InstanceView{with(reports("d", Decode, 0, 0, 9000), pulls(map[string]float64{"": 50, "near": .005})),
			with(reports("p", Prefill, 0, 0, 0), at("near"))}, Send{Prefill: "p", Decode: "d"}, ReasonSplit},
		{"decode: without costs the smaller batch", RequestView{}, []InstanceView{reports("d1", Decode, 4, 0, 0), reports("d2", Decode, 3, 0, 0)},
			Send{Decode: "d2"}, ReasonPredictedTPOT},
		{"decode: packed below the limit", RequestView{}, []InstanceView{with(reports("d1", Decode, 10, 0, 0), costs(fast, 4000)), with(reports("d2", Decode, 1, 0, 0), costs(fast, 100))},
			Send{Decode: "d1"}, ReasonPredictedTPOT},
		{"decode: the fastest beyond it", RequestView{TPOT: 12 * time.Millisecond}, []InstanceView{with(reports("d1", Decode, 10, 0, 0), costs(fast, 4000)), with(reports("d2", Decode, 5, 0, 0), costs(fast, 100))},
			Send{Decode: "d2"}, ReasonPredictedTPOT},
		{"decode: room for the answer", RequestView{MaxTokens: 500}, []InstanceView{with(reports("d1", Decode, 0, 0, 0), func(in *InstanceView) { in.Load.KVTokens, in.Load.KVFree = 4000, 1000 }), reports("d2", Decode, 3, 0, 0)},
			Send{Decode: "d2"}, ReasonPredictedTPOT},
		{"a suspect only as a last resort", RequestView{}, []InstanceView{with(reports("d1", Decode, 0, 0, 0), func(in *InstanceView) { in.Suspect = true }), reports("d2", Decode, 30, 0, 0)},
			Send{Decode: "d2"}, ReasonOnly},
		{"mixed: product", RequestView{}, []InstanceView{reports("m1", Mixed, 1, 0, 800), reports("m2", Mixed, 1, 0, 0)}, Send{Decode: "m2"}, ReasonProduct},
		{"slow start", RequestView{}, []InstanceView{with(reports("m1", Mixed, 0, 0, 0), func(in *InstanceView) { in.Weight = .1 }), reports("m2", Mixed, 2, 0, 0)}, Send{Decode: "m2"}, ReasonProduct},
		{"who cannot resume is out", RequestView{Resume: true}, []InstanceView{reports("m1", Mixed, 0, 0, 0), with(reports("m2", Mixed, 9, 0, 0), func(in *InstanceView) { in.Resumes = true })}, Send{Decode: "m2"}, ReasonOnly},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.req.Model, tt.req.PromptBytes = "m", 4000
			got := Measured{}.Decide(&Observation{Now: 9500 * time.Millisecond, Req: tt.req, Inst: tt.inst, Seed: 3})
			if got.Action != tt.want || !slices.Contains(got.Reasons, tt.reason) {
				t.Errorf("got %+v %v, want %+v because %s; scores %+v", got.Action, got.Reasons, tt.want, tt.reason, got.Scores)
			}
		})
	}
}

// TestMeasuredProperties: the same constraints hold as for least-in-flight, and
// equal inputs give equal decisions.
func TestMeasuredProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawObservation(t)
		o.Now, o.Req.PromptBytes = 10*time.Second, rapid.IntRange(0, 9000).Draw(t, "bytes")
		for i := range o.Inst {
			in := &o.Inst[i]
			in.Load = Load{At: time.Duration(rapid.IntRange(0, 10).Draw(t, "at")) * time.Second, Running: rapid.IntRange(0, 9).Draw(t, "running"),
				PrefillTokens: rapid.IntRange(0, 5000).Draw(t, "queued"), KVTokens: 100, KVFree: rapid.IntRange(0, 100).Draw(t, "free")}
			in.HitBytes = rapid.IntRange(0, o.Req.PromptBytes).Draw(t, "hit")
			in.Suspect = rapid.Bool().Draw(t, "suspect")
			if rapid.Bool().Draw(t, "cost") {
				in.Cost = linear{fixed: 1, decode: 1, prefill: 1, context: 1}
			}
		}
		d := Measured{}.Decide(o)
		if again := (Measured{}).Decide(o); !reflect.DeepEqual(d, again) {
			t.Fatalf("two decisions on one observation: %+v, %+v", d, again)
		}
		least := LeastInFlight{}.Decide(o)
		send, ok := d.Action.(Send)
		if _, can := least.Action.(Send); can != ok {
			t.Fatalf("%+v, but least-in-flight says %+v", d.Action, least.Action)
		}
		if !ok {
			return
		}
		for _, in := range o.Inst {
			down := !in.Ready || in.Model != "m"
			if in.ID == send.Decode && (down || in.Role == Prefill || out(o, in, o.Req.FailedDecode)) ||
				in.ID == send.Prefill && (down || in.Role != Prefill || in.Suspect || out(o, in, o.Req.FailedPrefill)) {
				t.Fatalf("%+v breaks a constraint at %+v", send, in)
			}
		}
	})
}

func BenchmarkMeasured(b *testing.B) {
	o := &Observation{Now: 9 * time.Second, Req: RequestView{Model: "m", PromptBytes: 4000}}
	for i := range 32 {
		o.Inst = append(o.Inst, reports(string(rune('a'+i))+"p", Prefill, i, 0, 10*i), reports(string(rune('a'+i))+"d", Decode, i, 0, 0))
	}
	b.ReportAllocs()
	for b.Loop() {
		o.Seed++
		Measured{}.Decide(o)
	}
}
