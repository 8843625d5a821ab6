package roles

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cloud/route"
)

// linear is a machine whose step takes fixed + per*decodes milliseconds, and a
// tenth of one for a prompt token.
type linear struct{ fixed, per float64 }

func (l linear) StepMs(decodes, prefill, _, _ int) float64 {
	return l.fixed + l.per*float64(decodes) + float64(prefill)/10
}

// host has n streams, the i-th of which has made 100+i tokens after a prompt of
// 50.
func host(id string, n int) Host {
	h := Host{ID: id, Takes: true, Slots: 64, Cost: linear{5, 3}, Copies: map[string]route.Copy{"": perToken(.01)},
		Load: route.Load{At: 100 * time.Second, Running: n, KVTokens: 40000, KVFree: 40000}}
	for i := range n {
		s := Stream{ID: fmt.Sprintf("%s-%d", id, i), Held: 150 + i, Made: 100 + i, Left: 1000}
		h.Streams = append(h.Streams, s)
		h.Load.DecodeContext += s.Held
		h.Load.KVFree -= s.Held
	}
	return h
}

// perToken is a copy that takes so many milliseconds a token.
func perToken(ms float64) route.Copy { return route.Copy{Least: ms, Most: ms} }

func with(h Host, f func(*Host)) Host { f(&h); return h }

func each(f func(*Stream)) func(*Host) {
	return func(h *Host) {
		for i := range h.Streams {
			f(&h.Streams[i])
		}
	}
}

func TestMoves(t *testing.T) {
	queued := func(h Host) Host {
		h.Slots, h.Cost, h.Turnover = 8, linear{10, 0}, 200
		return h
	}
	full := func(h Host) Host {
		h.Load.KVFree = 500
		return h
	}
	waits := func(n int) func(*Host) { return func(h *Host) { h.Load.Waiting = n } }
	tests := []struct {
		name  string
		hosts []Host
		want  string // "from to stream", or the reason of the first host
	}{
		{"nothing to do", []Host{host("a", 2), host("b", 2)}, ""},
		{"uneven, but fast enough", []Host{host("a", 12), host("b", 0)}, ""},
		{"too slow: the stream with the most to come", []Host{host("a", 20), host("b", 2)}, "a b a-19"},
		{"the fullest with the freest", []Host{host("a", 20), host("b", 6), host("c", 30), host("d", 1)}, "c d c-29"},
		{"full everywhere", []Host{host("a", 20), host("b", 18)}, "no_room_elsewhere"},
		{"sides would change", []Host{with(host("a", 3), func(h *Host) { h.Cost = linear{0, 16} }), with(host("b", 0), func(h *Host) { h.Cost = linear{40, 1} })}, "no_room_elsewhere"},
		{"the other takes none", []Host{host("a", 20), with(host("b", 0), func(h *Host) { h.Takes = false })}, "no_room_elsewhere"},
		{"no room for KV", []Host{host("a", 20), with(host("b", 0), func(h *Host) { h.Load.KVFree = 100 })}, "no_room_elsewhere"},
		{"an old report", []Host{with(host("a", 20), func(h *Host) { h.Load.At -= 2 * time.Second }), host("b", 0)}, "state_stale"},
		{"no cost model", []Host{with(host("a", 20), func(h *Host) { h.Cost = nil }), host("b", 0)}, "signals_missing"},
		{"no cost model there", []Host{host("a", 20), with(host("b", 0), func(h *Host) { h.Cost = nil })}, "no_room_elsewhere"},
		{"a move at a time", []Host{with(host("a", 20), func(h *Host) { h.Busy = true }), host("b", 0)}, "moves_already"},
		{"moved a short while ago", []Host{with(host("a", 20), each(func(s *Stream) { s.Moved = 95 * time.Second })), host("b", 0)}, "moved_before"},
		{"moved too often", []Host{with(host("a", 20), each(func(s *Stream) { s.Moves = 3 })), host("b", 0)}, "moved_before"},
		{"almost at their ends", []Host{with(host("a", 20), each(func(s *Stream) { s.Left = 1; s.Held = 3000 })), host("b", 0)}, "not_worth_it"},
		{"the copy costs too much", []Host{host("a", 20), with(host("b", 2), func(h *Host) { h.Copies = map[string]route.Copy{"a": perToken(20), "": perToken(.01)} })}, "not_worth_it"},
		{"nobody has measured a copy", []Host{host("a", 20), with(host("b", 2), func(h *Host) { h.Copies = nil })}, "a b a-19"},
		{"a queue", []Host{with(queued(host("a", 8)), waits(3)), queued(host("b", 2))}, "a b a-0"},
		{"about to be full", []Host{full(host("a", 8)), host("b", 2)}, "a b a-7"},
		{"full, and no room there", []Host{full(host("a", 8)), full(host("b", 2))}, "no_room_elsewhere"},
		{"full, and nobody waits", []Host{queued(host("a", 8)), queued(host("b", 2))}, "not_worth_it"},
	}
	for _, tt := range tests {
		moves, verdicts := MoveParams{}.Moves(&Moving{Now: 100 * time.Second, Hosts: tt.hosts, TPOT: 50 * ms})
		got := ""
		if len(moves) > 0 {
			got = fmt.Sprint(moves[0].From, " ", moves[0].To, " ", moves[0].Stream)
		} else if len(verdicts) > 0 {
			got = string(verdicts[0].Reason)
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q; %+v %+v", tt.name, got, tt.want, moves, verdicts)
		}
	}
}

// apply carries a move out.
func apply(t *rapid.T, o *Moving, m Move) {
	at := func(id string) *Host {
		return &o.Hosts[slices.IndexFunc(o.Hosts, func(h Host) bool { return h.ID == id })]
	}
	from, to := at(m.From), at(m.To)
	i := slices.IndexFunc(from.Streams, func(s Stream) bool { return s.ID == m.Stream })
	if i < 0 || from == to {
		t.Fatalf("%+v: no such stream there", m)
	}
	s := from.Streams[i]
	s.Moves, s.Moved = s.Moves+1, o.Now
	from.Streams = slices.Delete(from.Streams, i, i+1)
	to.Streams = append(to.Streams, s)
	for h, d := range map[*Host]int{from: -1, to: 1} {
		h.Load.Running += d
		h.Load.DecodeContext += d * s.Held
		h.Load.KVFree -= d * s.Held
	}
}

// TestMovesSettle: whatever the loads are, no move makes the largest load
// larger, each touches two instances that no other touches, no stream gets lost,
// and where nothing else happens moves end: nothing goes to and fro.
func TestMovesSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := &Moving{Now: 100 * time.Second, TPOT: 50 * ms}
		streams := 0
		for i := range rapid.IntRange(2, 6).Draw(t, "hosts") {
			h := host(fmt.Sprint("h", i), rapid.IntRange(0, 30).Draw(t, "streams"))
			h.Slots = rapid.SampledFrom([]int{0, 8, 64}).Draw(t, "slots")
			h.Load.Waiting = rapid.IntRange(0, 5).Draw(t, "waiting")
			h.Turnover = float64(rapid.IntRange(0, 2000).Draw(t, "turnover"))
			h.Takes = rapid.IntRange(0, 4).Draw(t, "takes") > 0
			h.Cost = linear{float64(rapid.IntRange(1, 40).Draw(t, "fixed")), float64(rapid.IntRange(0, 5).Draw(t, "per"))}
			h.Load.KVFree += rapid.IntRange(-5000, 0).Draw(t, "kv")
			for j := range h.Streams {
				h.Streams[j].Made = rapid.IntRange(1, 500).Draw(t, "made")
			}
			streams += len(h.Streams)
			o.Hosts = append(o.Hosts, h)
		}
		largest := func() (u float64) {
			for i := range o.Hosts {
				u = max(u, o.Hosts[i].now(o))
			}
			return u
		}
		rounds := 0
		for ; ; rounds++ {
			if rounds > 4*streams+4 {
				t.Fatal("moves never end")
			}
			moves, verdicts := MoveParams{}.Moves(o)
			if again, words := (MoveParams{}).Moves(o); !reflect.DeepEqual(moves, again) || !reflect.DeepEqual(verdicts, words) {
				t.Fatalf("two decisions: %+v, %+v", moves, again)
			}
			touched := map[string]bool{}
			for _, m := range moves {
				if touched[m.From] || touched[m.To] || m.Gain <= m.Cost {
					t.Fatalf("%+v", moves)
				}
				touched[m.From], touched[m.To] = true, true
				before := largest()
				apply(t, o, m)
				if after := largest(); after > before+1e-9 {
					t.Fatalf("%+v: the largest load went from %.3f to %.3f", m, before, after)
				}
			}
			o.Now += 20 * time.Second // nobody has to wait for its time
			for i := range o.Hosts {
				o.Hosts[i].Load.At = o.Now
			}
			if len(moves) == 0 {
				break
			}
		}
		left := 0
		for i := range o.Hosts {
			left += len(o.Hosts[i].Streams)
		}
		if left != streams {
			t.Fatalf("%d streams of %d", left, streams)
		}
	})
}
