package pool

import (
	"encoding/json"
	"fmt"
	"io"
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

// TestBalanceRefused: an instance that does not take the order keeps the stream,
// and is not asked for it again for a while, in another way neither.
func TestBalanceRefused(t *testing.T) {
	reg := prometheus.NewRegistry()
	p := still(t, members("a", "b")...)
	if err := p.meters.register(reg); err != nil {
		t.Fatal(err)
	}
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
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	stayed := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) == 2 && m.GetLabel()[0].GetValue() == string(CauseBalance) && m.GetLabel()[1].GetValue() == resultStayed {
				stayed = m.GetCounter().GetValue()
			}
		}
	}
	if stayed != 3 {
		t.Errorf("%v stayed", stayed)
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

// TestForgottenMoves: of a stream that never comes back nothing is kept.
func TestForgottenMoves(t *testing.T) {
	p := still(t, members("a")...)
	l := p.crowd("a", 1)[0]
	p.find("a").ledger.legs[l].cause = CauseDrain
	l.Release()
	if len(p.moved) != 1 {
		t.Fatal("nothing is remembered")
	}
	later(p, 2*historyFor)
	if p.bury(); len(p.moved) != 0 {
		t.Error("remembered for good")
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
