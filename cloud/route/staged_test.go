package route

import (
	"slices"
	"testing"
)

// TestStaged: a request that moves goes where its KV is, unless that instance
// cannot take it; any other request goes where the policy says.
func TestStaged(t *testing.T) {
	inst := func() []InstanceView {
		return []InstanceView{
			{ID: "idle", Role: Mixed, Model: "m", Ready: true, Resumes: true},
			{ID: "staged", Role: Decode, Model: "m", Ready: true, Resumes: true, InFlight: InFlight{Requests: 9}},
		}
	}
	for name, tt := range map[string]struct {
		change func(o *Observation)
		want   string
	}{
		"moves":     {func(*Observation) {}, "staged"},
		"does not":  {func(o *Observation) { o.Req.Moved = false }, "idle"},
		"suspect":   {func(o *Observation) { o.Inst[1].Suspect = true }, "idle"},
		"not ready": {func(o *Observation) { o.Inst[1].Ready = false }, "idle"},
		"failed":    {func(o *Observation) { o.Req.FailedDecode = []Process{{ID: "staged"}} }, "idle"},
		"gone":      {func(o *Observation) { o.Inst = o.Inst[:1] }, "idle"},
	} {
		o := &Observation{Req: RequestView{Model: "m", Resume: true, Moved: true}, Inst: inst()}
		tt.change(o)
		d := Staged{LeastInFlight{}, "staged"}.Decide(o)
		if got := d.Action.(Send).Decode; got != tt.want || slices.Contains(d.Reasons, ReasonStaged) != (tt.want == "staged") {
			t.Errorf("%s: goes to %s, %v", name, got, d.Reasons)
		}
	}
}
