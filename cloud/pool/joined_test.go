package pool

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/route"
)

func joinedAt(name, url, epoch string) Joined {
	return Joined{Member: Member{Name: name, URL: url, Model: "m"}, Epoch: epoch}
}

func healthOf(name, epoch string) string {
	return fmt.Sprintf(`{"status":"ok","name":%q,"epoch":%q,"role":"mixed","model":"m"}`, name, epoch)
}

// TestJoinedIsWatchedUntilItLeaves: who joins gets work, who leaves keeps what it
// has until that has ended.
func TestJoinedIsWatchedUntilItLeaves(t *testing.T) {
	w := newWorker(t, healthOf("w", "e1"))
	p := start(t)
	p.SetJoined([]Joined{joinedAt("w", w.URL, "e1")})
	await(t, "ready", func() bool { return ready(p, "w") })
	if s := status(p, "w"); s.From != FromJoined || s.HeartbeatMs == nil || s.Epoch != "e1" {
		t.Errorf("status %+v", s)
	}
	sel, _ := p.Select(route.LeastInFlight{}, route.Arrival, chat, 1)
	p.SetJoined(nil)
	if s := status(p, "w"); !s.Leaving || s.Ready || s.InFlight.Requests != 1 {
		t.Errorf("with a stream to end %+v", s)
	}
	if _, d := p.Select(route.LeastInFlight{}, route.Arrival, chat, 1); d.Action != (route.Reject{Cause: route.ReasonNoInstance}) {
		t.Errorf("it got new work: %+v", d.Action)
	}
	sel.Decode.Bad("news of one that left", true)
	sel.Release()
	await(t, "forgotten", func() bool { return len(p.Status()) == 0 })
}

// TestTheOperatorsListWins over a registration of the same name.
func TestTheOperatorsListWins(t *testing.T) {
	p := still(t, Member{Name: "w", URL: "http://static", Model: "m"})
	p.SetJoined([]Joined{joinedAt("w", "http://elsewhere", "e1"), {Member: Member{Name: "bad", URL: "ftp://h", Model: "m"}}})
	all := p.Status()
	if len(all) != 1 || all[0].URL != "http://static" || all[0].From != FromStatic || all[0].HeartbeatMs != nil {
		t.Errorf("status %+v", all)
	}
	if p.SetJoined(nil); len(p.Status()) != 1 {
		t.Error("the operator's instance left with the registry's")
	}
}

// TestRegistrationElsewhere: the process at the new address is another instance;
// its predecessor's stream and failures are not its own.
func TestRegistrationElsewhere(t *testing.T) {
	p := still(t)
	p.SetJoined([]Joined{joinedAt("w", "http://old", "e1")})
	old := p.find("w")
	p.note(old, health{Name: "w", Epoch: "e1"}, nil)
	sel, _ := p.Select(route.LeastInFlight{}, route.Arrival, chat, 1)
	p.SetJoined([]Joined{joinedAt("w", "http://new", "e2")})
	p.note(p.find("w"), health{Name: "w", Epoch: "e2"}, nil)
	sel.Decode.Bad("cut", true)
	all := p.Status()
	if len(all) != 2 || all[0].URL != "http://new" || !all[0].Ready || all[0].Failures != 0 || all[1].URL != "http://old" || !all[1].Leaving {
		t.Errorf("status %+v", all)
	}
	sel.Release()
	p.bury()
	if all = p.Status(); len(all) != 1 || all[0].URL != "http://new" {
		t.Errorf("after its last stream %+v", all)
	}
}

// TestAnotherWorkerAtItsAddress is not taken for it.
func TestAnotherWorkerAtItsAddress(t *testing.T) {
	w := newWorker(t, healthOf("other", "e1"))
	p := start(t)
	p.SetJoined([]Joined{joinedAt("w", w.URL, "e1")})
	await(t, "probed", func() bool { return status(p, "w").Problem == `instance "other" answers in its place` })
	if ready(p, "w") {
		t.Error("it is given work")
	}
	w.health.Store(healthOf("w", "e1"))
	await(t, "ready", func() bool { return ready(p, "w") })
}

// TestSilentMembers: a gateway believes its own probes before heartbeats, keeps
// its list while the registry is silent, and forgets whom neither hears of.
func TestSilentMembers(t *testing.T) {
	p := still(t)
	old := joinedAt("gone", "http://h", "e")
	old.Silent = DefaultForget + time.Second
	if p.SetJoined([]Joined{old}); len(p.Status()) != 0 {
		t.Errorf("one that is long silent came in: %+v", p.Status())
	}
	alive, dead := joinedAt("alive", "http://h", "e"), joinedAt("dead", "http://h", "e")
	p.SetJoined([]Joined{alive, dead})
	later(p, DefaultForget+time.Second)
	p.note(p.find("alive"), health{Name: "alive", Epoch: "e"}, nil)
	if len(p.Status()) != 2 {
		t.Errorf("without a word of the registry %+v", p.Status())
	}
	alive.Silent, dead.Silent = DefaultForget+time.Second, DefaultForget+time.Second
	p.SetJoined([]Joined{alive, dead})
	p.bury()
	if all := p.Status(); len(all) != 1 || all[0].Name != "alive" || *all[0].HeartbeatMs < DefaultForget.Milliseconds() {
		t.Errorf("status %+v", all)
	}
}

// TestRest: an instance that asked for a pause gets it, at most LongestRest, and
// the next process owes nothing.
func TestRest(t *testing.T) {
	p := still(t, Member{Name: "a", URL: "http://h", Model: "m"})
	ask := func() route.Action {
		s, d := p.Select(route.LeastInFlight{}, route.Arrival, chat, 1)
		s.Release()
		return d.Action
	}
	sel, _ := p.Select(route.LeastInFlight{}, route.Arrival, chat, 1)
	sel.Decode.Rest(time.Hour)
	if r, ok := ask().(route.Reject); !ok || r.Cause != route.ReasonAllBusy || r.After <= 0 || r.After > LongestRest {
		t.Errorf("at once: %+v", r)
	}
	later(p, LongestRest)
	if a := ask(); a != (route.Send{Decode: "a"}) {
		t.Errorf("after the pause: %+v", a)
	}
	sel.Decode.Rest(time.Second)
	p.note(p.find("a"), health{Epoch: "new"}, nil)
	if a := ask(); a != (route.Send{Decode: "a"}) {
		t.Errorf("another process: %+v", a)
	}
	sel.Decode.Rest(time.Second) // of the old one
	if a := ask(); a != (route.Send{Decode: "a"}) {
		t.Errorf("old news: %+v", a)
	}
	sel.Release()
}

// TestPoolsWithoutMembersExist, so that models may name them before anybody has
// joined.
func TestPoolsWithoutMembersExist(t *testing.T) {
	p, err := New(Options{Pools: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	if known, _ := p.Serves("m"); !known {
		t.Error("unknown pool")
	}
	if known, _ := p.Serves("x"); known {
		t.Error("known pool x")
	}
}
