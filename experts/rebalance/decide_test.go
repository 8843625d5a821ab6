package rebalance

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

// window is one layer's load of 4 experts as a window of 1000 tokens.
func window(load4 ...float64) load.Window {
	c := load.Counts{load4}
	return load.Window{Phase: load.Decode, TopK: 1, Tokens: 1000, Demand: c, Served: c}
}

// Devices 0 and 1 with 3 slots each: expert 0 and 1 once, 2 and 3 twice.
func twoDevices() plan.Placement {
	return plan.Placement{Experts: 4, Fleet: plan.Uniform(2, 3), Layers: [][]int{{0, 2, 3, 1, 2, 3}}}
}

func testConfig() Config {
	c := Default()
	c.Patience, c.Cooldown, c.VerifyAfter = 2, 3, 2
	return c
}

// run feeds windows and returns the decisions as "action reason".
func run(c Config, s State, obs ...Observation) (State, []string, Decision) {
	var out []string
	var d Decision
	for _, o := range obs {
		s, d = Decide(c, s, o)
		out = append(out, string(d.Action)+" "+string(d.Reason))
	}
	return s, out, d
}

func TestDecideSequences(t *testing.T) {
	even, hot := Observation{Window: window(25, 25, 25, 25)}, Observation{Window: window(70, 10, 10, 10)}
	small := hot
	small.Window.Tokens = 10
	now := hot
	now.Trigger = true
	tests := []struct {
		name string
		c    func(*Config)
		obs  []Observation
		want []string
	}{
		{"balanced", nil, []Observation{even, even}, []string{"stay balanced", "stay balanced"}},
		{"one skewed window is not enough", nil, []Observation{hot, even, hot}, []string{"stay waiting_for_more_windows", "stay balanced", "stay waiting_for_more_windows"}},
		{"moves, verifies, rests", nil, []Observation{hot, hot, hot, hot, hot}, []string{"stay waiting_for_more_windows", "move skewed", "stay verifying", "stay verified", "stay balanced"}},
		{"too few tokens say nothing", nil, []Observation{hot, small, hot}, []string{"stay waiting_for_more_windows", "stay too_few_tokens", "move skewed"}},
		{"triggered at once", nil, []Observation{now}, []string{"move triggered"}},
		{"trigger without gain", nil, []Observation{{Window: window(25, 25, 25, 25), Trigger: true}}, []string{"stay candidate_does_not_help"}},
		{"no budget", func(c *Config) { c.Moves = 0 }, []Observation{hot, hot}, []string{"stay waiting_for_more_windows", "stay candidate_does_not_help"}},
		{"no bytes", func(c *Config) { c.MaxBytes, c.Cost.BytesPerExpert = 10, 11 }, []Observation{hot, hot}, []string{"stay waiting_for_more_windows", "stay candidate_does_not_help"}},
		{"costs more", func(c *Config) {
			c.Cost = Cost{BytesPerExpert: 1e9, Bandwidth: 1e6, SecPerToken: 1e-6, Horizon: 1000, Ratio: 2}
		}, []Observation{hot, hot}, []string{"stay waiting_for_more_windows", "stay cost_exceeds_benefit"}},
		{"pays", func(c *Config) {
			c.Cost = Cost{BytesPerExpert: 1e6, Bandwidth: 1e9, SecPerToken: 1e-3, Horizon: 1e6, Ratio: 2}
		}, []Observation{hot, hot}, []string{"stay waiting_for_more_windows", "move skewed"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := testConfig()
			if tt.c != nil {
				tt.c(&c)
			}
			if _, got, d := run(c, NewState(twoDevices()), tt.obs...); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %q, want %q (last %+v)", got, tt.want, d)
			}
		})
	}
}

func TestRollBack(t *testing.T) {
	hot, other := Observation{Window: window(70, 10, 10, 10)}, Observation{Window: window(10, 70, 10, 10)}
	c := testConfig()
	c.Moves = 1
	s := NewState(twoDevices())
	s, got, d := run(c, s, hot, hot)
	if got[1] != "move skewed" {
		t.Fatalf("%q %+v", got, d)
	}
	// The traffic turns into what the old placement serves better.
	first := twoDevices()
	worse := window(10, 10, 10, 10)
	for e := range 4 {
		l := []float64{10, 10, 10, 10}
		l[e] = 60
		if s.Placement.Imbalance(0, l) > first.Imbalance(0, l)+0.05 {
			worse = window(l...)
		}
	}
	s, got, d = run(c, s, Observation{Window: worse}, Observation{Window: worse})
	if got[1] != "roll_back made_worse" || !reflect.DeepEqual(s.Placement, first) || d.Transfers == 0 {
		t.Fatalf("%q %+v", got, d)
	}
	if s.Generation != 2 || s.cooldown != 2*c.Cooldown {
		t.Errorf("generation %d, want 2; cool-down %d, want twice %d", s.Generation, s.cooldown, c.Cooldown)
	}
	_, got, _ = run(c, s, other, other, other)
	if got[2] != "stay cooling_down" {
		t.Errorf("after a roll-back: %q", got)
	}
}

// What helps only the windows it was learnt on is not done.
func TestNoiseIsNotFollowed(t *testing.T) {
	c := testConfig()
	flip := []Observation{{Window: window(70, 10, 10, 10)}, {Window: window(10, 70, 10, 10)}}
	s := NewState(twoDevices())
	for range 6 {
		var got []string
		s, got, _ = run(c, s, flip...)
		if strings.HasPrefix(got[0], "move") && s.Placement.Imbalance(0, []float64{40, 40, 10, 10}) > 1.2 {
			t.Fatalf("followed one of two alternating loads: %q", got)
		}
	}
}

func TestDecideIsPure(t *testing.T) {
	c, s := testConfig(), NewState(twoDevices())
	hot := Observation{Window: window(70, 10, 10, 10)}
	s, _, _ = run(c, s, hot)
	a, da := Decide(c, s, hot)
	b, db := Decide(c, s, hot)
	if !reflect.DeepEqual(a, b) || !reflect.DeepEqual(da, db) || da.Action != Move {
		t.Errorf("two decisions on one state: %+v and %+v", da, db)
	}
	if !reflect.DeepEqual(s.Placement, twoDevices()) || s.Generation != 0 {
		t.Error("Decide changed its argument")
	}
}

func TestDistortionAlarm(t *testing.T) {
	w := window(50, 50, 0, 0)
	w.Served = load.Counts{{25, 25, 25, 25}}
	_, d := Decide(testConfig(), NewState(twoDevices()), Observation{Window: w})
	if d.Distortion != 1 || !d.Alarm {
		t.Errorf("%+v, want distortion 1 with an alarm", d)
	}
}

// fakeMover records what it is asked and may refuse.
type fakeMover struct {
	fail  bool
	calls []uint64
	now   plan.Placement
}

func (m *fakeMover) Apply(_ context.Context, generation uint64, _, next plan.Placement) error {
	m.calls = append(m.calls, generation)
	if m.fail {
		return errors.New("checksum differs")
	}
	m.now = next
	return nil
}

func TestLoop(t *testing.T) {
	var out bytes.Buffer
	m := &fakeMover{fail: true}
	l := NewLoop(testConfig(), twoDevices(), m, slog.New(slog.NewTextHandler(&out, nil)))
	hot := Observation{Window: window(70, 10, 10, 10)}
	observe := func() (Decision, error) { return l.Observe(t.Context(), hot) }
	if _, err := observe(); err != nil {
		t.Fatal(err)
	}
	d, err := observe()
	if !errors.Is(err, ErrMove) || d.Reason != MoveFailed || !reflect.DeepEqual(l.Status().Placement, twoDevices()) {
		t.Fatalf("a failed move: %+v, %v", d, err)
	}
	m.fail = false
	for d.Action, err = Stay, nil; d.Action == Stay && len(m.calls) < 2; {
		if len(l.Status().Decisions) > 20 {
			t.Fatal("no second try")
		}
		if d, err = observe(); err != nil {
			t.Fatal(err)
		}
	}
	s := l.Status()
	if s.Generation != 1 || s.Moves != 1 || s.Failures != 1 || s.Transfers == 0 || !reflect.DeepEqual(s.Placement, m.now) {
		t.Errorf("status %+v", s)
	}
	if m.calls[0] != 1 || m.calls[1] != 1 {
		t.Errorf("generations %v: a failed one is used again", m.calls)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != int(s.Windows) {
		t.Errorf("%d lines for %d windows", len(lines), s.Windows)
	}
	for _, want := range []string{"reason=waiting_for_more_windows", "reason=move_failed", "error=", "reason=skewed", "generation=1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("log has no %s:\n%s", want, out.String())
		}
	}
}
