package route

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func inst(id string, role Role, n int) InstanceView {
	return InstanceView{ID: id, Epoch: "e", Role: role, Model: "m", Ready: true, InFlight: InFlight{Requests: n}}
}

func down(in InstanceView) InstanceView { in.Ready = false; return in }

func apart(in InstanceView) InstanceView { in.Apart = true; return in }

func TestDecide(t *testing.T) {
	kv := func(in InstanceView, f string) InstanceView { in.KVFormat = f; return in }
	of := func(in InstanceView, weights string) InstanceView { in.Resumes, in.Weights = true, weights; return in }
	tests := []struct {
		name     string
		req      RequestView
		inst     []InstanceView
		want     Action
		reasons  []Reason
		fallback bool
	}{
		{name: "one pair", inst: []InstanceView{inst("d", Decode, 0), inst("p", Prefill, 0)},
			want: Send{Prefill: "p", Decode: "d"}, reasons: []Reason{ReasonOnly, ReasonSplit}},
		{name: "least in flight at both stages",
			inst: []InstanceView{inst("d1", Decode, 3), inst("d2", Decode, 2), inst("p1", Prefill, 1), inst("p2", Prefill, 4)},
			want: Send{Prefill: "p1", Decode: "d2"}, reasons: []Reason{ReasonLeastInFlight, ReasonSplit}},
		{name: "mixed alone", inst: []InstanceView{inst("m", Mixed, 9)},
			want: Send{Decode: "m"}, reasons: []Reason{ReasonOnly, ReasonWhole}},
		{name: "moved with its KV", req: RequestView{Moved: true}, inst: []InstanceView{inst("d", Decode, 0), inst("p", Prefill, 0)},
			want: Send{Decode: "d"}, reasons: []Reason{ReasonOnly, ReasonWhole}},
		{name: "no prefill left", inst: []InstanceView{inst("d", Decode, 0), down(inst("p", Prefill, 0))},
			want: Send{Decode: "d"}, reasons: []Reason{ReasonOnly, ReasonPrefillAtDecode}, fallback: true},
		{name: "prefill failed before", req: RequestView{FailedPrefill: []Process{{"p1", "e"}}},
			inst: []InstanceView{inst("d", Decode, 0), inst("p1", Prefill, 0), inst("p2", Prefill, 7)},
			want: Send{Prefill: "p2", Decode: "d"}, reasons: []Reason{ReasonOnly, ReasonSplit}},
		{name: "handoff kept", req: RequestView{FailedDecode: []Process{{"d1", "e"}}, Handoff: Process{"p", "e"}},
			inst:    []InstanceView{inst("d1", Decode, 0), inst("d2", Decode, 7), inst("p", Prefill, 7), inst("p2", Prefill, 0)},
			want:    Send{Prefill: "p", Decode: "d2", Reuse: true},
			reasons: []Reason{ReasonOnly, ReasonSplit, ReasonHandoffReused}},
		{name: "handoff of a dead instance is not reused", req: RequestView{Handoff: Process{"p", "e"}},
			inst: []InstanceView{inst("d", Decode, 0), down(inst("p", Prefill, 0)), inst("p2", Prefill, 0)},
			want: Send{Prefill: "p2", Decode: "d"}, reasons: []Reason{ReasonOnly, ReasonSplit}},
		{name: "KV formats differ",
			inst: []InstanceView{kv(inst("d", Decode, 0), "a"), kv(inst("p", Prefill, 0), "b")},
			want: Send{Decode: "d"}, reasons: []Reason{ReasonOnly, ReasonPrefillAtDecode}, fallback: true},
		{name: "no certificates for hand-offs", inst: []InstanceView{inst("d", Decode, 0), apart(inst("p1", Prefill, 0)), inst("p2", Prefill, 9)},
			want: Send{Prefill: "p2", Decode: "d"}, reasons: []Reason{ReasonOnly, ReasonSplit}},
		{name: "none to take hand-offs with", inst: []InstanceView{apart(inst("d", Decode, 0)), inst("p", Prefill, 0)},
			want: Send{Decode: "d"}, reasons: []Reason{ReasonOnly, ReasonPrefillAtDecode}, fallback: true},
		{name: "continued by the same weights", req: RequestView{Resume: true, Weights: "A"},
			inst: []InstanceView{of(inst("d1", Decode, 0), "B"), of(inst("d2", Decode, 9), "A"), of(inst("p1", Prefill, 0), "B"), of(inst("p2", Prefill, 9), "A")},
			want: Send{Prefill: "p2", Decode: "d2"}, reasons: []Reason{ReasonOnly, ReasonSplit}},
		{name: "weights unknown", req: RequestView{Resume: true, Weights: "A"}, inst: []InstanceView{of(inst("d1", Decode, 0), "B"), of(inst("d2", Mixed, 9), "")},
			want: Send{Decode: "d2"}, reasons: []Reason{ReasonOnly, ReasonWhole}},
		{name: "other weights only", req: RequestView{Resume: true, Weights: "A"}, inst: []InstanceView{of(inst("d1", Mixed, 0), "B")},
			want: Reject{Cause: ReasonNoInstance}},
		{name: "a beginning of unknown weights", req: RequestView{Resume: true}, inst: []InstanceView{of(inst("d1", Mixed, 0), "B")},
			want: Send{Decode: "d1"}, reasons: []Reason{ReasonOnly, ReasonWhole}},
		{name: "nothing shown", req: RequestView{Weights: "A"}, inst: []InstanceView{of(inst("d1", Mixed, 0), "B")},
			want: Send{Decode: "d1"}, reasons: []Reason{ReasonOnly, ReasonWhole}},
		{name: "unknown model", req: RequestView{Model: "other"}, inst: []InstanceView{inst("d", Decode, 0)},
			want: Reject{Cause: ReasonNoInstance}},
		{name: "none ready", inst: []InstanceView{down(inst("d", Decode, 0)), inst("p", Prefill, 0)},
			want: Reject{Cause: ReasonNoneReady}},
		{name: "all failed", req: RequestView{FailedDecode: []Process{{"d", "e"}}}, inst: []InstanceView{inst("d", Decode, 0)},
			want: Reject{Cause: ReasonAllFailed}},
		{name: "one failed and was taken out", req: RequestView{FailedDecode: []Process{{"d", "e"}}},
			inst: []InstanceView{down(inst("d", Decode, 0)), down(inst("e", Decode, 0))}, want: Reject{Cause: ReasonAllFailed}},
		{name: "another process has failed nobody", req: RequestView{FailedDecode: []Process{{"d", "old"}}},
			inst: []InstanceView{{ID: "d", Epoch: "new", Role: Mixed, Model: "m", Ready: true}},
			want: Send{Decode: "d"}, reasons: []Reason{ReasonOnly, ReasonWhole}},
		{name: "handoff of the process before is not reused", req: RequestView{Handoff: Process{"p", "old"}},
			inst: []InstanceView{inst("d", Decode, 0), {ID: "p", Epoch: "new", Role: Prefill, Model: "m", Ready: true}},
			want: Send{Prefill: "p", Decode: "d"}, reasons: []Reason{ReasonOnly, ReasonSplit}},
		{name: "one rests", inst: []InstanceView{inst("d1", Decode, 9), rests(inst("d2", Decode, 0), time.Second)},
			want: Send{Decode: "d1"}, reasons: []Reason{ReasonOnly, ReasonPrefillAtDecode}, fallback: true},
		{name: "all rest", inst: []InstanceView{rests(inst("d1", Decode, 0), 3*time.Second), rests(inst("d2", Decode, 0), 2*time.Second)},
			want: Reject{ReasonAllBusy, 2 * time.Second}},
		{name: "one failed, the other rests", req: RequestView{FailedDecode: []Process{{"d1", "e"}}},
			inst: []InstanceView{rests(inst("d1", Decode, 0), 9*time.Second), rests(inst("d2", Decode, 0), 2*time.Second)},
			want: Reject{ReasonAllFailed, 2 * time.Second}},
		{name: "prefill rests", inst: []InstanceView{inst("d", Decode, 0), rests(inst("p", Prefill, 0), time.Second)},
			want: Send{Decode: "d"}, reasons: []Reason{ReasonOnly, ReasonPrefillAtDecode}, fallback: true},
		{name: "prefill alone never decodes", inst: []InstanceView{inst("p", Prefill, 0)}, want: Reject{Cause: ReasonNoInstance}},
		{name: "hopeless prompt", req: RequestView{PromptBytes: 10 << 20},
			inst: []InstanceView{{ID: "d", Role: Decode, Model: "m", Ready: true, Context: 2048}}, want: Reject{Cause: ReasonTooLong}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.req.Model == "" {
				tt.req.Model = "m"
			}
			d := LeastInFlight{}.Decide(&Observation{Req: tt.req, Inst: tt.inst, Seed: 7})
			if d.Action != tt.want || !slices.Equal(d.Reasons, tt.reasons) || d.Fallback != tt.fallback {
				t.Errorf("got %+v, want %+v %v fallback=%v", d, tt.want, tt.reasons, tt.fallback)
			}
		})
	}
}

// rests is in, left alone for d from the observation's beginning.
func rests(in InstanceView, d time.Duration) InstanceView {
	in.RestsUntil = d
	return in
}

// out reports whether an instance may not be asked.
func out(o *Observation, in InstanceView, failed []Process) bool {
	return slices.Contains(failed, in.process()) || in.RestsUntil > o.Now
}

// TestTiesAreShared checks that equals share the work over many seeds.
func TestTiesAreShared(t *testing.T) {
	o := &Observation{Req: RequestView{Model: "m"}}
	for i := range 4 {
		o.Inst = append(o.Inst, inst(fmt.Sprint(i), Mixed, 1))
	}
	got := map[string]int{}
	for seed := range uint64(4000) {
		o.Seed = seed
		got[LeastInFlight{}.Decide(o).Action.(Send).Decode]++
	}
	for id, n := range got {
		if n < 800 || n > 1200 {
			t.Errorf("instance %s got %d of 4000, want about 1000", id, n)
		}
	}
}

// TestDecideProperties: equal inputs give equal decisions, hard constraints
// hold, and nothing ready with fewer legs is passed over.
func TestDecideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawObservation(t)
		d := LeastInFlight{}.Decide(o)
		if again := (LeastInFlight{}).Decide(o); !reflect.DeepEqual(d, again) {
			t.Fatalf("two decisions on one observation: %+v, %+v", d, again)
		}
		views := map[string]*InstanceView{}
		for i := range o.Inst {
			views[o.Inst[i].ID] = &o.Inst[i]
		}
		send, ok := d.Action.(Send)
		if !ok {
			for _, in := range o.Inst {
				if in.Ready && in.Model == "m" && in.Role != Prefill && !out(o, in, o.Req.FailedDecode) {
					t.Fatalf("rejected %+v although %s could serve", d, in.ID)
				}
			}
			return
		}
		dec := views[send.Decode]
		if !dec.Ready || dec.Model != "m" || dec.Role == Prefill || out(o, *dec, o.Req.FailedDecode) {
			t.Fatalf("decode at %+v violates a constraint", dec)
		}
		if send.Prefill != "" {
			p := views[send.Prefill]
			if !p.Ready || p.Role != Prefill || out(o, *p, o.Req.FailedPrefill) || sharesKV(dec)(o, p) != "" {
				t.Fatalf("prefill at %+v violates a constraint", p)
			}
		}
		for _, in := range o.Inst {
			if in.Ready && in.Model == "m" && in.Role != Prefill && !out(o, in, o.Req.FailedDecode) &&
				in.InFlight.Requests < dec.InFlight.Requests {
				t.Fatalf("%s has fewer legs than the chosen %s", in.ID, dec.ID)
			}
		}
	})
}

func drawObservation(t *rapid.T) *Observation {
	o := &Observation{Req: RequestView{Model: "m"}, Seed: rapid.Uint64().Draw(t, "seed")}
	for i := range rapid.IntRange(0, 8).Draw(t, "n") {
		in := inst(fmt.Sprintf("i%d", i), rapid.SampledFrom([]Role{Mixed, Prefill, Decode}).Draw(t, "role"),
			rapid.IntRange(0, 3).Draw(t, "legs"))
		in.Ready = rapid.IntRange(0, 3).Draw(t, "ready") > 0
		in.KVFormat = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "kv")
		in.Apart = rapid.IntRange(0, 4).Draw(t, "apart") == 0
		in.Epoch = rapid.SampledFrom([]string{"", "e1", "e2"}).Draw(t, "epoch")
		in.RestsUntil = time.Duration(rapid.IntRange(0, 1).Draw(t, "rests")) * time.Hour
		if rapid.Bool().Draw(t, "failed") {
			o.Req.FailedDecode = append(o.Req.FailedDecode, in.process())
			if rapid.Bool().Draw(t, "both") {
				o.Req.FailedPrefill = append(o.Req.FailedPrefill, in.process())
			}
		}
		o.Inst = append(o.Inst, in)
	}
	return o
}

func BenchmarkDecide(b *testing.B) {
	o := &Observation{Req: RequestView{Model: "m"}}
	for i := range 32 {
		o.Inst = append(o.Inst, inst(fmt.Sprintf("p%02d", i), Prefill, i), inst(fmt.Sprintf("d%02d", i), Decode, i))
	}
	b.ReportAllocs()
	for b.Loop() {
		o.Seed++
		LeastInFlight{}.Decide(o)
	}
}
