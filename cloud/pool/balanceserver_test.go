package pool

import (
	"slices"
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/state"
)

type balServer struct {
	name           string
	running, queue []*balAnswer
	steps          bool // a step is under way
	away           bool
	stops          time.Duration
}

type balAnswer struct {
	operation    string
	gateway      *Pool
	arrived      time.Duration
	first        time.Duration
	tokens, made int
	moves        int
	again        bool // its KV has been given up
	selection    Selection
	to           string // it leaves for, after the step
}

// step begins a step of a server that has none under way.
func (s *balanceSim) step(at *balServer) {
	if at.steps {
		return
	}
	for s.outgrown(at) {
	}
	for len(at.queue) > 0 && len(at.running) < balSlots && at.held()+at.queue[0].held()+256 <= s.kv {
		a := at.queue[0]
		if a.again {
			at.stops += time.Duration(a.held()) * balPrefill
		}
		a.again = false
		a.selection.Decode.Prefilled()
		at.running, at.queue = append(at.running, a), at.queue[1:]
	}
	if len(at.running) == 0 {
		return
	}
	at.steps = true
	took := at.stops + time.Duration((10+1.5*float64(len(at.running)))*float64(time.Millisecond))
	at.stops = 0
	s.after(took, func() {
		at.steps = false
		at.running = slices.DeleteFunc(at.running, s.token)
		s.step(at)
	})
}

// outgrown gives up the newest answer of a server whose KV is full: it is computed
// again when there is room.
func (s *balanceSim) outgrown(at *balServer) bool {
	last := len(at.running) - 1
	if at.held()+len(at.running) <= s.kv || last < 1 {
		return false
	}
	a := at.running[last]
	a.again = true
	s.preempted++
	at.running, at.queue = at.running[:last], slices.Insert(at.queue, 0, a)
	return true
}

func (a *balAnswer) held() int { return 100 + a.made }

func (x *balServer) held() (n int) {
	for _, a := range x.running {
		n += a.held()
	}
	return n
}

// token gives an answer a token, and reports whether it leaves its server.
func (s *balanceSim) token(a *balAnswer) bool {
	if a.made++; a.made == 1 {
		a.first = s.clock
		s.waits = append(s.waits, float64(s.clock-a.arrived)/float64(time.Millisecond))
	}
	if a.made == a.tokens {
		a.selection.Release()
		if a.made > 1 {
			s.paces = append(s.paces, float64(s.clock-a.first)/float64(time.Millisecond)/float64(a.made-1))
		}
		s.ended++
		delete(s.answers, a.operation)
		return true
	}
	if a.to == "" {
		return false
	}
	copied := time.Duration(a.held()) * balCopy
	s.servers[a.selection.Decode.ID].stops += copied
	s.servers[a.to].stops += copied
	a.selection.Release()
	to := a.to
	a.to = ""
	s.after(balDowntime, func() { s.place(a, route.Staged{Policy: route.Measured{}, At: to}, true) })
	return true
}

// restart takes a server out for a while, as an upgrade does.
func (s *balanceSim) restart(x *balServer) {
	x.away = true
	s.after(30*time.Second, func() {
		x.away = false
		for _, g := range s.gateways {
			g.note(g.find(x.name), health{Epoch: "e", Role: route.Decode}, nil)
		}
	})
}

// report has every server tell every gateway.
func (s *balanceSim) report() {
	for _, x := range s.order {
		s.seq++
		n := len(x.running)
		m := &state.Message{Full: true, Seq: s.seq, Epoch: "e", Role: "decode", Health: healthOK, MaxSeqs: balSlots, Context: 8192, KVBytesPerToken: 128 << 10,
			Cost:      &cost.Model{Pieces: []cost.Piece{{Fixed: 10, PerDecode: 1.5, PerPrefill: .1}}},
			Transfers: []state.Transfer{{Peer: "x:1", Recent: pulled(128<<30, balCopy.Seconds()*(1<<20))}},
			Load:      state.Load{Running: n, Waiting: len(x.queue), KVBlockSize: 16, KVBlocksTotal: s.kv / 16}}
		if x.away {
			m.Health = healthDraining
		}
		for _, a := range x.running {
			m.Requests = append(m.Requests, state.Request{Operation: a.operation, Phase: state.Decode, PromptTokens: 100, Generated: a.made})
			m.DecodeCtxTokens += 100 + a.made
		}
		m.KVBlocksUsed = m.DecodeCtxTokens / 16
		for _, a := range x.queue {
			m.Requests = append(m.Requests, state.Request{Operation: a.operation, Phase: state.Waiting, PromptTokens: 100})
		}
		for _, g := range s.gateways {
			if err := g.hear(g.find(x.name), m); err != nil {
				panic(err)
			}
		}
	}
}
