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
	from  *instance // which it leaves; nil where it does not, or has come elsewhere
	cause Cause
	moves int
	moved time.Duration // the last of them
	since time.Duration // when its last leg ended
}

// historyFor is how long a stream may be between two legs.
const historyFor = time.Minute

// leavesLocked remembers a leg that ends while its instance is told to give its
// stream away, and one whose stream has moved before.
func (p *Pool) leavesLocked(l *Leg, e *entry) {
	now := p.now()
	p.lapseLocked(e)
	switch {
	case e.cause != "":
		l.in.shifted = now
		p.moved[e.operation] = &history{l.in, e.cause, e.moves + 1, now, now}
		e.cause = "" // counted with the history
	case e.moves > 0 && l.move == nil:
		p.moved[e.operation] = &history{moves: e.moves, moved: e.moved, since: now}
	}
}

// lapseLocked takes back an order that was taken and did nothing.
func (p *Pool) lapseLocked(e *entry) {
	if e.cause != "" && e.asked <= p.now() {
		p.stayedLocked(e.cause)
		e.cause, e.heir = "", nil
	}
}

func (p *Pool) stayedLocked(c Cause) {
	p.meters.moves.WithLabelValues(string(c), resultStayed).Inc()
}

// arrivesLocked takes over what is remembered of a stream that goes on with a
// leg. Until the first token there another instance may have to take it.
func (p *Pool) arrivesLocked(l *Leg, ask *Ask) {
	h := p.moved[ask.Operation]
	if h == nil {
		return
	}
	e := l.in.ledger.legs[l]
	e.moves, e.moved = h.moves, h.moved
	switch {
	case h.from == nil:
	case ask.Moved:
		l.in.shifted = p.now()
		l.move = h
	default: // it goes on after a failure
		p.stayedLocked(h.cause)
		h.from = nil
	}
}

// cameLocked counts a stream that has moved when its first token comes, or its end.
func (p *Pool) cameLocked(l *Leg) {
	h := l.move
	if l.move = nil; h == nil || h.from == nil {
		return
	}
	l.in.moves.Took++
	h.from.moves.Gave.count(h.cause)
	h.from = nil
	p.meters.moves.WithLabelValues(string(h.cause), resultMoved).Inc()
}

// Stood tells of the first token of a stream that has moved: last is when the
// one before it came, zero where there was none to see. It does nothing for other
// streams.
func (l *Leg) Stood(last time.Time) {
	h := l.move
	if h == nil {
		return
	}
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	if l.pool.cameLocked(l); !last.IsZero() {
		stood := time.Since(last)
		l.pool.meters.downtime.WithLabelValues(string(h.cause)).Observe(stood.Seconds())
		l.in.moves.stood(stood)
	}
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
	peers, busy := p.peersLocked(), p.busyLocked()
	for i, v := range p.observeLocked() {
		in := p.inst[i]
		if v.Role == route.Prefill || !in.known.streams || in.apart {
			continue
		}
		k := kin{in.Model, in.prints}
		o := pools[k]
		if o == nil {
			o = &roles.Moving{Now: p.now(), TPOT: wantTPOT}
			pools[k] = o
		}
		h := p.hostLocked(in, &v)
		h.Copies, h.Busy = in.known.copiesFrom(peers), h.Busy || busy[in]
		if sound(&v, o.Now) && params.Gives(o, &h) {
			h.Streams, h.Turnover = in.streams(o.Now), in.turnover(&v)
		}
		o.Hosts = append(o.Hosts, h)
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

// hostLocked is an instance as a decision about moves takes it, without its
// streams.
func (p *Pool) hostLocked(in *instance, v *route.InstanceView) roles.Host {
	h := roles.Host{ID: v.ID, Takes: sound(v, p.now()) && v.Resumes && in.kvAddress() != nil, Load: v.Load, Slots: in.maxSeqs, Cost: v.Cost,
		Busy: in.known.load.At <= in.shifted}
	h.Load.Waiting += v.Unseen.Requests
	return h
}

// sound reports whether an instance is trusted and has all of its share.
func sound(v *route.InstanceView, now time.Duration) bool {
	return v.Ready && !v.Suspect && v.RestsUntil <= now && v.Weight >= 1
}

// turnover is roles.Turnover of an instance's requests.
func (in *instance) turnover(v *route.InstanceView) float64 {
	var made []int
	for _, r := range in.known.decoding {
		made = append(made, r.Generated)
	}
	slices.Sort(made) // a sum of floats depends on the order
	return roles.Turnover(made, v.Cost.StepMs(v.Load.Running, 0, v.Load.DecodeContext, 0))
}

// busyLocked are the instances to which or from which a move is under way, also
// from one that is a member no more.
func (p *Pool) busyLocked() map[*instance]bool {
	busy := map[*instance]bool{}
	for _, in := range slices.Concat(p.inst, p.leaving) {
		for _, e := range in.ledger.legs {
			if e.asked > p.now() {
				busy[in], busy[e.heir] = true, true
			}
		}
	}
	return busy
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
