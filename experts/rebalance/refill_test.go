package rebalance

import (
	"log/slog"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/experts/plan"
)

func TestLostDevice(t *testing.T) {
	hot := Observation{Window: window(70, 10, 10, 10), Lost: []int{1}}
	c := testConfig()
	s := NewState(plan.Trivial(1, 4, plan.Uniform(3, 2))) // 0 1, 2 3, 0 1
	s, d := Decide(c, s, hot)
	if d.Action != Move || d.Reason != ShardLost || !slices.Equal(d.Next.Fleet.Slots, []int{2, 0, 2}) {
		t.Fatalf("%+v", d)
	}
	if err := d.Next.Validate(); err != nil || d.Transfers != 2 || s.Generation != 1 {
		t.Errorf("%+v, %v, generation %d", d, err, s.Generation)
	}
	if _, d = Decide(c, s, hot); d.Reason != Waiting {
		t.Errorf("once answered, a lost device is no reason for more: %+v", d)
	}
	hot.Lost = []int{1, 2}
	if s, d = Decide(c, s, hot); d.Action != Stay || d.Reason != NoRoom || s.Generation != 1 {
		t.Errorf("2 slots for 4 experts: %+v", d)
	}
}

// A lost device needs no window: experts come back without traffic, and after
// a failed move the next observation tries again.
func TestLostDeviceWithoutTraffic(t *testing.T) {
	p := plan.Trivial(2, 4, plan.Uniform(3, 2))
	m := &fakeMover{fail: true}
	l := NewLoop(testConfig(), p, m, slog.New(slog.DiscardHandler))
	if d, err := l.Observe(t.Context(), Observation{Lost: []int{0}}); err == nil || d.Reason != MoveFailed {
		t.Errorf("%+v, %v", d, err)
	}
	m.fail = false
	if d, err := l.Observe(t.Context(), Observation{Lost: []int{0}}); err != nil || d.Reason != ShardLost {
		t.Errorf("%+v, %v", d, err)
	}
}

// After any losses every expert has a seat on a device that is left, or the
// decision says that there is no room, and then there is none.
func TestLostDevicesKeepExperts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		experts, devices := rapid.IntRange(1, 12).Draw(t, "experts"), rapid.IntRange(2, 6).Draw(t, "devices")
		least := (experts + devices - 1) / devices
		fleet := plan.Uniform(devices, rapid.IntRange(least, experts).Draw(t, "slots"))
		lost := rapid.SliceOfNDistinct(rapid.IntRange(0, devices-1), 1, devices, rapid.ID).Draw(t, "lost")
		s := NewState(plan.Trivial(2, experts, fleet))
		_, d := Decide(testConfig(), s, Observation{Lost: lost})
		room := (devices-len(lost))*fleet.Slots[0] >= experts
		if (d.Action == Move) != room {
			t.Fatalf("%d slots left for %d experts: %+v", (devices-len(lost))*fleet.Slots[0], experts, d)
		}
		if !room {
			return
		}
		if err := d.Next.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, g := range lost {
			if d.Next.Fleet.Slots[g] != 0 {
				t.Fatalf("device %d still has slots", g)
			}
		}
	})
}
