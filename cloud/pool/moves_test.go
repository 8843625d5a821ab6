package pool

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/cloud/roles"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/state"
)

// crowded is what an instance with n streams says: its steps take 5 ms and 3 more
// a stream, times slow.
func crowded(name string, n int, slow float64) *state.Message {
	m := &state.Message{Full: true, Seq: 1, Epoch: "e", Role: "decode", Health: healthOK, MaxSeqs: 64, Context: 8192, KVBytesPerToken: 100,
		Cost: &cost.Model{Pieces: []cost.Piece{{Fixed: 5, PerDecode: 3, PerPrefill: .1}}},
		Load: state.Load{Running: n, KVBlockSize: 16, KVBlocksTotal: 10000, DecodeCtxTokens: 200 * n, ModelMS: float64(5 + 3*n), StepMS: slow * float64(5+3*n)}}
	for i := range n {
		m.Requests = append(m.Requests, state.Request{Operation: fmt.Sprint(name, i), Phase: state.Decode, PromptTokens: 50, Generated: 150 + i})
	}
	return m
}

func (p *Pool) told(t *testing.T, name string, m *state.Message) {
	t.Helper()
	if err := p.hear(p.find(name), m); err != nil {
		t.Fatal(err)
	}
}

// crowd opens n legs at an instance.
func (p *Pool) crowd(name string, n int) (legs []*Leg) {
	for i := range n {
		ask := Ask{RequestView: route.RequestView{Model: "m", PromptBytes: 200, MaxTokens: 4000}, Operation: fmt.Sprint(name, i), Movable: true}
		legs = append(legs, p.openLocked(name, &ask, 0))
	}
	return legs
}

func members(names ...string) (out []Member) {
	for _, name := range names {
		out = append(out, Member{Name: name, URL: "http://" + name + ":1", Model: "m"})
	}
	return out
}

// orders answers every order and counts them.
type orders struct {
	mu     sync.Mutex
	status int
	got    []string // "instance operation destination"
}

func (o *orders) client() *http.Client {
	return &http.Client{Transport: engineFunc(func(r *http.Request) (int, io.Reader) {
		var q struct {
			Operation string
			To        struct{ Name string }
		}
		_ = json.NewDecoder(r.Body).Decode(&q)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.got = append(o.got, fmt.Sprint(r.URL.Hostname(), " ", q.Operation, " ", q.To.Name))
		return o.status, strings.NewReader("{}")
	})}
}

// TestBalance: a stream of the fullest instance goes to the freest, one at a
// time; it is not asked again, comes to its heir with its history, and the next
// one waits for reports of after the move.
func TestBalance(t *testing.T) {
	p := still(t, members("a", "b")...)
	o := &orders{status: http.StatusOK}
	p.opts.Client = o.client()
	p.told(t, "a", crowded("a", 20, 1))
	p.told(t, "b", crowded("b", 2, 1))
	legs := p.crowd("a", 20)
	p.crowd("b", 2)
	later(p, time.Millisecond)
	list := p.balance(roles.MoveParams{})
	if len(list) != 1 || list[0].leg.operation != "a19" || list[0].heir.Name != "b" || list[0].cause != CauseBalance {
		t.Fatalf("%+v", list)
	}
	if again := p.balance(roles.MoveParams{}); len(again) != 0 {
		t.Fatalf("a second move at a time: %+v", again)
	}
	p.giveAway(t.Context(), list[0])
	if len(o.got) != 1 || o.got[0] != "a a19 b" {
		t.Fatalf("orders %q", o.got)
	}
	if again := p.balance(roles.MoveParams{}); len(again) != 0 {
		t.Fatalf("a second move before the stream has left: %+v", again)
	}
	legs[19].Release()
	ask := Ask{RequestView: route.RequestView{Model: "m", Moved: true, MaxTokens: 4000}, Operation: "a19", Movable: true}
	came := p.openLocked("b", &ask, 0)
	later(p, time.Millisecond)
	if again := p.balance(roles.MoveParams{}); len(again) != 0 {
		t.Fatalf("a move on knowledge of before the last: %+v", again)
	}
	came.Stood(time.Now().Add(-40 * time.Millisecond))
	came.Stood(time.Now().Add(-40 * time.Second)) // counts once
	p.told(t, "a", crowded("a", 19, 1))
	p.told(t, "b", crowded("b", 3, 1))
	if e := p.find("b").ledger.legs[came]; e.moves != 1 || e.moved == 0 {
		t.Errorf("the stream's history is lost: %+v", e)
	}
	later(p, time.Millisecond)
	if list := p.balance(roles.MoveParams{}); len(list) != 1 || list[0].leg.operation != "a18" {
		t.Errorf("after the reports: %+v", list)
	}
	a, b := status(p, "a").Moves, status(p, "b").Moves
	if a.Gave.Balance != 1 || b.Took != 1 || b.DowntimeMs < 40 || b.DowntimeMs > 10_000 {
		t.Errorf("a %+v, b %+v", a, b)
	}
}

// counted is how many moves became of a cause.
func (p *Pool) counted(t *testing.T, c Cause, result string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(p.meters.moves)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == string(c) && m.GetLabel()[1].GetValue() == result {
			return m.GetCounter().GetValue()
		}
	}
	t.Fatalf("no %s %s", c, result)
	return 0
}

// TestBalanceRefused: an instance that does not take the order keeps the stream,
// and is not asked for it again for a while, in another way neither.
func TestBalanceRefused(t *testing.T) {
	p := still(t, members("a", "b")...)
	o := &orders{status: http.StatusConflict}
	p.opts.Client = o.client()
	p.told(t, "a", crowded("a", 20, 1))
	legs := p.crowd("a", 20)
	for i := range 3 {
		later(p, time.Second)
		p.told(t, "a", crowded("a", 20, 1))
		p.told(t, "b", crowded("b", 2, 1))
		list := p.balance(roles.MoveParams{})
		if want := fmt.Sprint("a", 19-i); len(list) != 1 || list[0].leg.operation != want || list[0].leg.whole {
			t.Fatalf("look %d: %+v, want %s", i, list, want)
		}
		p.giveAway(t.Context(), list[0])
	}
	if n := p.counted(t, CauseBalance, resultStayed); n != 3 {
		t.Errorf("%v stayed", n)
	}
	for _, l := range legs {
		l.Release()
	}
	if len(p.moved) != 0 {
		t.Errorf("%d streams remembered that did not move", len(p.moved))
	}
}

// TestNoBalanceInTheDark: other engines, old reports and instances that come
// back move nothing.
func TestNoBalanceInTheDark(t *testing.T) {
	for name, change := range map[string]func(p *Pool, b *state.Message){
		"an old report":    func(p *Pool, _ *state.Message) { later(p, 2*time.Second) },
		"no cost model":    func(p *Pool, b *state.Message) { p.find("b").known.cost, b.Cost = nil, nil },
		"slow start":       func(p *Pool, _ *state.Message) { p.find("b").vitals.back = p.now() },
		"a suspect":        func(p *Pool, _ *state.Message) { p.find("b").vitals.suspect = true },
		"asked for a rest": func(p *Pool, _ *state.Message) { p.find("b").vitals.rests = p.now() + time.Minute },
		"another model":    func(p *Pool, _ *state.Message) { p.find("b").prints = "other" },
		"none gives KV":    func(p *Pool, _ *state.Message) { p.find("a").apart = true },
		"none takes KV":    func(p *Pool, _ *state.Message) { p.find("b").apart = true },
		"prefills":         func(_ *Pool, b *state.Message) { b.Role = "prefill" },
	} {
		p := still(t, members("a", "b")...)
		p.told(t, "a", crowded("a", 20, 1))
		b := crowded("b", 2, 1)
		p.told(t, "b", b)
		p.crowd("a", 20)
		change(p, b)
		if name != "an old report" {
			p.told(t, "b", b)
		}
		if list := p.balance(roles.MoveParams{}); len(list) != 0 {
			t.Errorf("%s: %+v", name, list)
		}
	}
}

// leaves tells an instance to give a leg's stream away.
func (p *Pool) leaves(l *Leg, c Cause, until time.Duration) {
	e := l.in.ledger.legs[l]
	e.cause, e.asked = c, until
}

// TestForgottenMoves: of a stream that never comes back nothing is kept; it has
// not moved, nor has one that goes on after a failure.
func TestForgottenMoves(t *testing.T) {
	p := still(t, members("a", "b")...)
	legs := p.crowd("a", 2)
	for _, l := range legs {
		p.leaves(l, CauseDrain, forever)
		l.Release()
	}
	if len(p.moved) != 2 {
		t.Fatalf("%d are remembered", len(p.moved))
	}
	ask := Ask{RequestView: route.RequestView{Model: "m", Resume: true}, Operation: "a1"}
	p.openLocked("b", &ask, 0).Prefilled()
	if n := p.counted(t, CauseDrain, resultStayed); n != 1 {
		t.Errorf("%v stayed of the one that has failed", n)
	}
	later(p, 2*historyFor)
	if p.bury(); len(p.moved) != 0 {
		t.Error("remembered for good")
	}
	if n, moved := p.counted(t, CauseDrain, resultStayed), p.counted(t, CauseDrain, resultMoved); n != 2 || moved != 0 {
		t.Errorf("%v stayed, %v moved", n, moved)
	}
}

// TestOrderThatDoesNothing: a stream that goes on where it is although the order
// to leave was taken is counted, may be told again, and has not moved when it ends.
func TestOrderThatDoesNothing(t *testing.T) {
	p := still(t, members("a", "b")...)
	p.opts.Client = (&orders{status: http.StatusOK}).client()
	p.told(t, "a", crowded("a", 20, 1))
	p.told(t, "b", crowded("b", 2, 1))
	legs := p.crowd("a", 20)
	later(p, time.Millisecond)
	list := p.balance(roles.MoveParams{})
	if len(list) != 1 {
		t.Fatalf("%+v", list)
	}
	p.giveAway(t.Context(), list[0])
	for range 2 {
		later(p, departure)
		p.bury()
	}
	if e := list[0].leg; e.cause != "" || e.heir != nil || e.moved == 0 || p.counted(t, CauseBalance, resultStayed) != 1 {
		t.Errorf("%+v, %v stayed", e, p.counted(t, CauseBalance, resultStayed))
	}
	p.leaves(legs[0], CauseFailing, p.now()) // nobody has looked since
	for _, l := range legs {
		l.Release()
	}
	if len(p.moved) != 0 || p.find("a").shifted != 0 || p.counted(t, CauseFailing, resultStayed) != 1 {
		t.Errorf("%d streams have moved", len(p.moved))
	}
}

// TestHeirRefuses: a stream whose heir does not take it comes to another one,
// which has its history; so has the next instance after a failure.
func TestHeirRefuses(t *testing.T) {
	p := still(t, members("a", "b", "c")...)
	l := p.crowd("a", 1)[0]
	p.leaves(l, CauseBalance, forever)
	l.Release()
	ask := Ask{RequestView: route.RequestView{Model: "m", Moved: true}, Operation: "a0", Movable: true}
	p.openLocked("b", &ask, 0).Release()
	c := p.openLocked("c", &ask, 0)
	if n := p.counted(t, CauseBalance, resultMoved); n != 0 {
		t.Errorf("%v moved before a token came", n)
	}
	c.Stood(time.Now().Add(-40 * time.Millisecond))
	c.Prefilled()
	if a, b, c := p.find("a").moves, p.find("b").moves, p.find("c").moves; a.Gave.Balance != 1 || b != (Moves{}) || c.Took != 1 || c.DowntimeMs < 40 {
		t.Errorf("a %+v, b %+v, c %+v", a, b, c)
	}
	if n := p.counted(t, CauseBalance, resultMoved); n != 1 {
		t.Errorf("%v moved", n)
	}
	moved := c.in.ledger.legs[c].moved
	c.Release()
	ask.Moved, ask.Resume = false, true
	b := p.openLocked("b", &ask, 0)
	if e := b.in.ledger.legs[b]; e.moves != 1 || e.moved != moved || moved == 0 {
		t.Errorf("after a failure: %+v", e)
	}
	b.Prefilled()
	if b.Good(); p.find("b").moves.Took != 0 {
		t.Error("the failure counts as a move")
	}
}

// TestMovedAtItsEnd: of a stream that moves behind its last token only the end
// comes elsewhere.
func TestMovedAtItsEnd(t *testing.T) {
	p := still(t, members("a", "b")...)
	l := p.crowd("a", 1)[0]
	p.leaves(l, CauseBalance, forever)
	l.Release()
	b := p.openLocked("b", &Ask{RequestView: route.RequestView{Model: "m", Moved: true}, Operation: "a0", Movable: true}, 0)
	b.Good()
	b.Release()
	if n := p.counted(t, CauseBalance, resultMoved); n != 1 || p.find("a").moves.Gave.Balance != 1 || p.find("b").moves.Took != 1 {
		t.Errorf("%v moved", n)
	}
}

// TestBusyWithALeaver: who takes a stream of an instance that is a member no more
// gets no other one meanwhile.
func TestBusyWithALeaver(t *testing.T) {
	p := still(t, members("a", "b", "gone")...)
	p.told(t, "a", crowded("a", 20, 1))
	p.told(t, "b", crowded("b", 2, 1))
	p.crowd("a", 20)
	l := p.crowd("gone", 1)[0]
	p.leaves(l, CauseDrain, forever)
	l.in.ledger.legs[l].heir = p.find("b")
	p.retire(p.find("gone"))
	later(p, time.Millisecond)
	if list := p.balance(roles.MoveParams{}); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	l.in.ledger.legs[l].asked = 0
	if list := p.balance(roles.MoveParams{}); len(list) != 1 {
		t.Errorf("when it has come: %+v", list)
	}
}

// BenchmarkBalance is a look at 64 instances with 64 streams each, of which none
// has too much to do.
func BenchmarkBalance(b *testing.B) {
	var names []string
	for i := range 64 {
		names = append(names, fmt.Sprint("i", i))
	}
	p, err := New(Options{Members: members(names...), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range names {
		p.note(p.find(name), health{Epoch: "e"}, nil)
		m := crowded(name, 64, 1)
		m.MaxSeqs, m.Cost = 128, &cost.Model{Pieces: []cost.Piece{{Fixed: 5, PerDecode: .1}}}
		p.crowd(name, 64)
		if err := p.hear(p.find(name), m); err != nil {
			b.Fatal(err)
		}
	}
	p.now = func() time.Duration { return time.Second / 2 }
	b.ReportAllocs()
	for b.Loop() {
		if list := p.balance(roles.MoveParams{}); len(list) != 0 {
			b.Fatal(list)
		}
	}
}

// TestApartLeavesWithoutKV: a worker that says that it has no hand-offs neither
// sends the KV of the streams that leave it nor is sent any; they go on all the
// same.
func TestApartLeavesWithoutKV(t *testing.T) {
	no := false
	for _, who := range []string{"", "a", "b"} {
		p := still(t, members("a", "b")...)
		p.opts.Client = (&orders{status: http.StatusOK}).client()
		p.opts.Moves = &roles.MoveParams{}
		for _, name := range []string{"a", "b"} {
			h := health{Status: "ok", Fingerprint: []byte(`{"weights":"w","runner":"r","kv":"k"}`)}
			if name == who {
				h.Handoff = &no
			}
			p.noteHealthy(p.find(name), h)
		}
		m := crowded("a", 1, 1)
		m.Failing = "memory"
		p.told(t, "a", m)
		p.told(t, "b", crowded("b", 0, 1))
		p.crowd("a", 1)
		p.judge()
		list := p.toMove()
		if len(list) != 1 || (list[0].heir != nil) != (who == "") {
			t.Errorf("%q apart: %+v", who, list)
		}
	}
}
