package pool

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/cloud/roles"
	"github.com/weirhq/weir/cloud/route"
)

// degrade has n looks at a pool, at each of which instance i reports steps that
// take slow[i] times as long as its model says.
func (p *Pool) degrade(t *testing.T, n int, slow ...float64) {
	t.Helper()
	for range n {
		later(p, steerEvery)
		for i, in := range p.inst {
			m := crowded(in.Name, 4, slow[i])
			m.Failing, m.Steps = in.known.failing, in.known.steps+1
			p.told(t, in.Name, m)
		}
		p.judge()
	}
}

func (p *Pool) failed() (names string) {
	for _, s := range p.Status() {
		if s.Failing != "" {
			names += s.Name
			if !s.Ready {
				names += "!"
			}
			if s.Suspect {
				names += "?"
			}
		}
	}
	return names
}

// TestGrayFailure: an instance that slows while its peers do not gets no work
// until it is well, and comes back slowly. A pool that slows as a whole has load,
// and only half of the instances are out at a time.
func TestGrayFailure(t *testing.T) {
	p := still(t, members("a", "b", "c", "d")...)
	p.degrade(t, 20, 1, 1, 1, 1)
	if got := p.failed(); got != "" {
		t.Fatalf("%s of a sound pool", got)
	}
	p.degrade(t, 30, 6, 6, 6, 6)
	if got := p.failed(); got != "" {
		t.Fatalf("%s of a busy pool", got)
	}
	p.degrade(t, 12, 6, 1, 1, 1)
	if got := p.failed(); got != "a!" || !strings.Contains(status(p, "a").Failing, "6.0 times as long") {
		t.Fatalf("%s: %s", got, status(p, "a").Failing)
	}
	for seed := range uint64(8) {
		if s, _ := p.Select(route.Measured{}, route.Arrival, chat, seed); s.Decode.ID == "a" {
			t.Error("got new work")
		}
	}
	p.degrade(t, 12, 1, 1, 1, 1)
	if s := status(p, "a"); p.failed() != "" || !s.Ready || s.Share >= 1 {
		t.Errorf("after it: %s %+v", p.failed(), s)
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		m := crowded(name, 4, 1)
		m.Failing = "disk"
		p.told(t, name, m)
	}
	p.judge()
	if got := p.failed(); got != "a?b?c?d?" {
		t.Errorf("all of them fail: %s, want all in as suspects", got)
	}
	p.told(t, "d", crowded("d", 4, 1))
	p.judge()
	if got := p.failed(); got != "a!b!c?" {
		t.Errorf("all but one fail: %s, want half of them out", got)
	}
}

// TestOneSlowStep: a step that takes long is no degradation, however often it is
// reported before the next one ends.
func TestOneSlowStep(t *testing.T) {
	p := still(t, members("a", "b")...)
	p.degrade(t, 10, 1, 1)
	slow := crowded("a", 4, 7)
	slow.Steps = p.find("a").known.steps + 1
	for range 30 {
		later(p, steerEvery)
		p.told(t, "a", slow)
		p.judge()
	}
	if got := p.failed(); got != "" {
		t.Errorf("%s: %s", got, status(p, "a").Failing)
	}
}

// TestFailingStreamsLeave: streams leave an instance that says that it fails,
// those with the most to come first, where Options.Moves is set and somebody can
// take them.
func TestFailingStreamsLeave(t *testing.T) {
	p := still(t, members("a", "b")...)
	o := &orders{status: http.StatusOK}
	p.opts.Client = o.client()
	m := crowded("a", 3, 1)
	m.Failing = strings.Repeat("memory ", 100) + "\xff"
	p.told(t, "a", m)
	p.told(t, "b", crowded("b", 1, 1))
	p.crowd("a", 3)
	p.judge()
	if list := p.toMove(); len(list) != 0 {
		t.Fatalf("moves that nobody has allowed: %+v", list)
	}
	p.opts.Moves = &roles.MoveParams{}
	list := p.toMove()
	var got []string
	for _, m := range list {
		got = append(got, m.leg.operation)
		if m.cause != CauseFailing || m.from.Name != "a" {
			t.Errorf("%+v", m)
		}
	}
	if strings.Join(got, " ") != "a2 a1 a0" {
		t.Errorf("order %q", got)
	}
	if why := status(p, "a").Failing; len(why) > 200 || !strings.HasPrefix(why, "memory") {
		t.Errorf("%d bytes: %q", len(why), why)
	}
	if s := status(p, "a"); s.Ready || s.Suspect {
		t.Errorf("%+v", s)
	}
	p.told(t, "a", crowded("a", 3, 1))
	p.judge()
	if s := status(p, "a"); !s.Ready || s.Failing != "" || s.Share >= 1 {
		t.Errorf("after it took its word back: %+v", s)
	}
}

// TestLastWords: what an instance said of itself on a stream that has ended holds
// until its next good probe, which has newer words.
func TestLastWords(t *testing.T) {
	p := still(t, members("a", "b")...)
	m := crowded("a", 3, 1)
	m.Failing, m.Health = "memory", healthDraining
	p.told(t, "a", m)
	a := p.find("a")
	if p.note(a, health{Status: "ok", Epoch: "e"}, nil); a.known.failing != "memory" || !a.known.draining {
		t.Errorf("a probe is believed before the stream: %+v", a.known)
	}
	p.lost(a)
	if p.judge(); p.failed() != "a!" {
		t.Errorf("%q before a probe", p.failed())
	}
	p.note(a, health{Status: "ok", Epoch: "e", Failing: "memory"}, nil)
	if p.judge(); p.failed() != "a!" || a.known.draining {
		t.Errorf("%q while it says so: %+v", p.failed(), a.known)
	}
	p.note(a, health{Status: "ok", Epoch: "e"}, nil)
	if p.judge(); p.failed() != "" {
		t.Errorf("%q for good", p.failed())
	}
}

// TestIdleRest: an instance that was out and has nothing to run gives no
// evidence; it is tried again after a while.
func TestIdleRest(t *testing.T) {
	p := still(t, members("a", "b")...)
	for range 12 {
		later(p, steerEvery)
		m := crowded("a", 4, 6)
		m.Steps = p.find("a").known.steps + 1
		p.told(t, "a", m)
		p.told(t, "b", crowded("b", 0, 0)) // never ran anything
		p.judge()
	}
	if got := p.failed(); got != "a!" {
		t.Fatal(got)
	}
	for range 45 {
		later(p, steerEvery)
		p.told(t, "a", crowded("a", 0, 6))
		b := crowded("b", 8, 1)
		b.Steps = p.find("b").known.steps + 1
		p.told(t, "b", b)
		p.judge()
	}
	if got := p.failed(); got != "" {
		t.Errorf("still out after %v: %s", 45*steerEvery, got)
	}
	if p.find("a").reborn("next"); p.find("a").pace != (pace{}) {
		t.Error("the next process bears the last one's evidence")
	}
}
