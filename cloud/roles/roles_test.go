package roles

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cloud/route"
)

const ms = time.Millisecond

func p(id string, backlog time.Duration) Instance {
	return Instance{ID: id, Role: route.Prefill, Ready: true, Flips: true, Backlog: backlog, Running: 1}
}

func d(id string, running int, tpot time.Duration) Instance {
	return Instance{ID: id, Role: route.Decode, Ready: true, Flips: true, Running: running, TPOT: tpot}
}

func TestDecide(t *testing.T) {
	fixed := func(in Instance) Instance { in.Flips = false; return in }
	changed := func(in Instance, at time.Duration) Instance { in.Changed = at; return in }
	tests := []struct {
		name   string
		inst   []Instance
		id     string
		role   route.Role
		reason Reason
	}{
		{"balanced", []Instance{p("p", 200*ms), d("d", 3, 20*ms)}, "", "", ReasonBalanced},
		{"prefill behind", []Instance{p("p", 3000*ms), d("d1", 3, 10*ms), d("d2", 1, 10*ms)}, "d2", route.Prefill, ReasonPrefill},
		{"decode behind", []Instance{p("p1", 10*ms), p("p2", 0), d("d", 9, 60*ms)}, "p1", route.Decode, ReasonDecode},
		{"both behind", []Instance{p("p1", 3000*ms), p("p2", 3000*ms), d("d1", 9, 60*ms), d("d2", 9, 60*ms)}, "", "", ReasonBalanced},
		{"the last of its role", []Instance{p("p", 3000*ms), d("d", 0, 0)}, "", "", ReasonAtLeastOne},
		{"no room to give", []Instance{p("p", 3000*ms), d("d1", 3, 40*ms), d("d2", 1, 40*ms)}, "", "", ReasonNoDonor},
		{"nobody can change", []Instance{p("p", 3000*ms), fixed(d("d1", 1, ms)), fixed(d("d2", 1, ms))}, "", "", ReasonNoDonor},
		{"dwell", []Instance{p("p", 3000*ms), d("d1", 1, ms), changed(d("d2", 1, ms), 95*time.Second)}, "", "", ReasonDwell},
		{"after the dwell", []Instance{p("p", 3000*ms), d("d1", 1, ms), changed(d("d2", 0, ms), 80*time.Second)}, "d2", route.Prefill, ReasonPrefill},
		{"not split", []Instance{{ID: "m", Role: route.Mixed, Ready: true, Flips: true, Backlog: time.Hour}}, "", "", ReasonBalanced},
	}
	for _, tt := range tests {
		got := Params{}.Decide(&Observation{Now: 100 * time.Second, Inst: tt.inst, TTFT: time.Second, TPOT: 50 * ms})
		if got.ID != tt.id || got.Role != tt.role || got.Reason != tt.reason {
			t.Errorf("%s: %+v, want %s to %s because %s", tt.name, got, tt.id, tt.role, tt.reason)
		}
	}
}

// TestProperties: whatever the load does, a pool never loses its last ready
// instance of a role, changes come at most once in a dwell time, and equal
// observations give equal decisions.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := &Observation{TTFT: time.Second, TPOT: 50 * ms}
		for i := range rapid.IntRange(2, 6).Draw(t, "n") {
			in := p(fmt.Sprint("i", i), 0)
			if i%2 == 1 {
				in.Role = route.Decode
			}
			o.Inst = append(o.Inst, in)
		}
		last := -time.Hour
		for range 40 {
			o.Now += time.Duration(rapid.IntRange(1, 8000).Draw(t, "step")) * ms
			for i := range o.Inst {
				in := &o.Inst[i]
				in.Ready = rapid.IntRange(0, 5).Draw(t, "ready") > 0
				in.Backlog = time.Duration(rapid.IntRange(0, 4000).Draw(t, "backlog")) * ms
				in.TPOT = time.Duration(rapid.IntRange(0, 150).Draw(t, "tpot")) * ms
				in.Running = rapid.IntRange(0, 9).Draw(t, "running")
			}
			got := Params{}.Decide(o)
			if again := (Params{}).Decide(o); !reflect.DeepEqual(got, again) {
				t.Fatalf("two decisions: %+v, %+v", got, again)
			}
			if got.ID == "" {
				continue
			}
			if o.Now-last < 10*time.Second {
				t.Fatalf("a change after %v", o.Now-last)
			}
			last = o.Now
			left := map[route.Role]int{}
			for i := range o.Inst {
				in := &o.Inst[i]
				if in.ID == got.ID {
					if !in.Ready || in.Role == got.Role {
						t.Fatalf("changed %+v to %s", in, got.Role)
					}
					in.Role, in.Changed = got.Role, o.Now
				}
				if in.Ready {
					left[in.Role]++
				}
			}
			if left[route.Prefill] == 0 || left[route.Decode] == 0 {
				t.Fatalf("%+v left %v", got, left)
			}
		}
	})
}
