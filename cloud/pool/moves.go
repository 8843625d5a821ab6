package pool

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirhq/weir/cloud/roles"
	"github.com/weirhq/weir/cloud/route"
)

// Cause is why a stream moves.
type Cause string

// Causes of moves.
const (
	CauseDrain   Cause = "drain"   // its instance takes no more work
	CauseFailing Cause = "failing" // its instance degrades while it still answers
	CauseBalance Cause = "balance" // its instance has too much to do, another has not
)

// history is what is remembered of a stream between its legs.
type history struct {
	from  *instance
	cause Cause
	moves int
	at    time.Duration // of the last
}

// historyFor is how long a stream may be between two legs.
const historyFor = time.Minute

// leavesLocked remembers a leg that ends while its instance is told to give its
// stream away, or after that.
func (p *Pool) leavesLocked(in *instance, e *entry) {
	if e.cause != "" {
		in.shifted = p.now()
		p.moved[e.operation] = history{in, e.cause, e.moves + 1, p.now()}
	}
}

// arrivesLocked takes over what is remembered of a stream that goes on with a
// leg at in.
func (p *Pool) arrivesLocked(in *instance, l *Leg, operation string) {
	h, ok := p.moved[operation]
	if !ok {
		return
	}
	delete(p.moved, operation)
	e := in.ledger.legs[l]
	e.moves, e.moved = h.moves, h.at
	in.shifted = p.now()
	l.cause = h.cause
	in.moves.Took++
	h.from.moves.Gave.count(h.cause)
	p.meters.moves.WithLabelValues(string(h.cause), resultMoved).Inc()
}

// Stood tells of the first token of a stream that has moved: last is when the
// one before it came, zero where there was none to see. It does nothing for other
// streams.
func (l *Leg) Stood(last time.Time) {
	if l.cause == "" || last.IsZero() {
		return
	}
	stood := time.Since(last)
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.pool.meters.downtime.WithLabelValues(string(l.cause)).Observe(stood.Seconds())
	l.in.moves.stood(stood)
	l.cause = ""
}

// Moves count an instance's streams that this gateway has moved.
type Moves struct {
	Gave Gave `json:"gave" doc:"streams that left, by cause"`
	Took int  `json:"took" doc:"streams that came"`
	// DowntimeMs is over those that came.
	DowntimeMs float64 `json:"downtime_ms" doc:"mean of recent ones that came: from their last token there to their next one here"`
}

// Gave counts streams that left an instance.
type Gave struct {
	Drain   int `json:"drain" doc:"because it took no more work"`
	Failing int `json:"failing" doc:"because it degraded while it still answered"`
	Balance int `json:"balance" doc:"because it had too much to do and another had not"`
}

func (g *Gave) count(c Cause) {
	switch c {
	case CauseDrain:
		g.Drain++
	case CauseFailing:
		g.Failing++
	case CauseBalance:
		g.Balance++
	}
}

func (m *Moves) stood(d time.Duration) {
	ms := float64(d.Microseconds()) / 1000
	if m.DowntimeMs == 0 {
		m.DowntimeMs = ms
	}
	m.DowntimeMs += (ms - m.DowntimeMs) / 10
}

// kin are instances among which streams move with their KV.
type kin struct{ model, prints string }

// balance lists this gateway's streams that go elsewhere to even out the load,
// at most one to and from an instance at a time. It marks them as asked to leave.
// Several gateways do so each for its own streams: what one has done the others
// see in the next reports.
func (p *Pool) balance(params roles.MoveParams) []move {
	p.mu.Lock()
	defer p.mu.Unlock()
	pools := map[kin]*roles.Moving{}
	peers := p.peersLocked()
	for i, v := range p.observeLocked() {
		in := p.inst[i]
		if v.Role == route.Prefill || !in.known.streams || in.apart {
			continue
		}
		k := kin{in.Model, in.prints}
		if pools[k] == nil {
			pools[k] = &roles.Moving{Now: p.now(), TPOT: wantTPOT}
		}
		pools[k].Hosts = append(pools[k].Hosts, p.hostLocked(in, &v, peers))
	}
	var out []move
	for k, o := range pools {
		moves, verdicts := params.Moves(o)
		for _, v := range verdicts {
			p.opts.Log.Debug("load of an instance", "instance", v.ID, "model", k.model, "streams", v.Reason)
		}
		for _, m := range moves {
			out = append(out, p.sendLocked(m))
		}
	}
	return out
}

// sendLocked marks the stream of a move.
func (p *Pool) sendLocked(m roles.Move) move {
	from, heir := p.find(m.From), p.find(m.To)
	out := move{from: from, heir: heir.kvAddress(), cause: CauseBalance}
	for _, e := range from.ledger.legs {
		if e.operation == m.Stream && e.movable {
			out.leg = e
		}
	}
	out.leg.asked, out.leg.heir, out.leg.cause = forever, heir, CauseBalance
	p.opts.Log.Info("stream moves to even out the load", "operation", m.Stream, "from", m.From, "to", m.To, "gain_ms", m.Gain, "cost_ms", m.Cost)
	return out
}

// hostLocked is an instance as a decision about moves takes it.
func (p *Pool) hostLocked(in *instance, v *route.InstanceView, peers map[string]string) roles.Host {
	now := p.now()
	sound := v.Ready && !v.Suspect && v.RestsUntil <= now && v.Weight >= 1
	h := roles.Host{ID: v.ID, Takes: sound && v.Resumes && in.kvAddress() != nil, Load: v.Load, Slots: in.maxSeqs, Cost: v.Cost,
		Busy: in.known.load.At <= in.shifted || p.movesLocked(in), Copies: in.known.copiesFrom(peers)}
	h.Load.Waiting += v.Unseen.Requests
	if v.Cost != nil {
		var made []int
		for _, r := range in.known.decoding {
			made = append(made, r.Generated)
		}
		slices.Sort(made) // a sum of floats depends on the order
		h.Turnover = roles.Turnover(made, v.Cost.StepMs(v.Load.Running, 0, v.Load.DecodeContext, 0))
	}
	if sound {
		h.Streams = in.streams(now)
	}
	return h
}

// movesLocked reports whether a move to in or from it is under way.
func (p *Pool) movesLocked(in *instance) bool {
	for _, other := range p.inst {
		for _, e := range other.ledger.legs {
			if e.asked > p.now() && (other == in || e.heir == in) {
				return true
			}
		}
	}
	return false
}

// streams are those of this gateway that could leave an instance now, in the
// order of their names.
func (in *instance) streams(now time.Duration) []roles.Stream {
	var out []roles.Stream
	for _, e := range in.ledger.legs {
		if r, ok := in.known.decoding[e.operation]; ok && e.movable && e.asked <= now {
			out = append(out, e.stream(r.PromptTokens, r.Generated))
		}
	}
	slices.SortFunc(out, func(a, b roles.Stream) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (e *entry) stream(prompt, made int) roles.Stream {
	s := roles.Stream{ID: e.operation, Held: prompt + made, Made: made, Moves: e.moves, Moved: e.moved}
	if e.most > 0 {
		s.Left = max(e.most-made, 1)
	}
	return s
}

// peersLocked are the instances' names by the address of their KV.
func (p *Pool) peersLocked() map[string]string {
	out := map[string]string{}
	for _, in := range p.inst {
		if in.kvAddr != "" {
			out[in.kvAddr] = in.Name
		}
	}
	return out
}
