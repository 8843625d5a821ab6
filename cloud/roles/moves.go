package roles

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirhq/weir/cloud/route"
)

// Host is an instance as a decision about moves sees it: its own report, and
// what the observer has running there.
type Host struct {
	ID string
	// Takes says that streams may come: it is ready, trusted, and has all of its
	// share.
	Takes bool
	// Busy says that a move of the observer's goes to it or from it, or is newer
	// than the report.
	Busy bool
	// Load is its report; requests that the report does not hold yet are among
	// Waiting.
	Load  route.Load
	Slots int // requests computed at a time; 0 is unknown
	// Turnover is the time, in milliseconds, after which one of its requests is
	// likely to end; 0 is unknown.
	Turnover float64
	Cost     route.Cost // nil is unknown
	// Copies are how long KV takes from another instance, by its ID, or from
	// anybody ("").
	Copies  map[string]route.Copy
	Streams []Stream // that could move
}

// Stream is a running answer.
type Stream struct {
	ID    string
	Held  int // tokens of prompt and answer
	Made  int // tokens of the answer
	Left  int // tokens that may still come at most; 0 is unknown
	Moves int
	Moved time.Duration // when it moved last, on Moving.Now's clock; 0 is never
}

// Expected is how many tokens a stream may be expected to make yet: as many as
// it has made, for answers whose length nobody predicts.
func (s *Stream) Expected() int {
	if s.Left > 0 {
		return min(s.Made, s.Left)
	}
	return s.Made
}

// Moving is what a decision about moves sees: the instances of one pool that
// decode.
type Moving struct {
	Now   time.Duration
	Hosts []Host
	TPOT  time.Duration // wanted time per token
}

// Move is a stream that is to go on elsewhere. Gain and Cost are sums over all
// streams that it touches, in milliseconds.
type Move struct {
	Stream, From, To string
	Gain, Cost       float64
}

// Reasons why streams of an instance that has too many stay there.
const (
	ReasonStale       Reason = "state_stale"
	ReasonUnknown     Reason = "signals_missing" // no cost model, or no word of its KV
	ReasonBusy        Reason = "moves_already"
	ReasonNoRoom      Reason = "no_room_elsewhere"
	ReasonNotWorth    Reason = "not_worth_it" // the copy would cost more than it brings
	ReasonMovedBefore Reason = "moved_before" // all of its streams, lately or too often
	ReasonMoves       Reason = "moves"
)

// Verdict says of an instance with too much to do why it gives a stream away or
// not.
type Verdict struct {
	ID     string
	Reason Reason
}

// MoveParams bound moves. Zero fields take the defaults of scheduling.md 10 and
// 3.9.
type MoveParams struct {
	// High and Low are usages: an instance beyond High gives, one that stays below
	// Low takes. .95 and .85, so that what dispatch has packed up to .85 stays.
	High, Low float64
	Stale     time.Duration // age beyond which a report is not used; 1 s
	Dwell     time.Duration // between two moves of a stream; 10 s
	Most      int           // moves of a stream; 3
	Pay       float64       // times its cost that a move must gain; 2
}

func (p *MoveParams) fill() {
	p.High, p.Low = cmp.Or(p.High, .95), cmp.Or(p.Low, .85)
	p.Stale, p.Dwell = cmp.Or(p.Stale, time.Second), cmp.Or(p.Dwell, 10*time.Second)
	p.Most, p.Pay = cmp.Or(p.Most, 3), cmp.Or(p.Pay, 2)
}

// Moves evens out a pool's load. It is Llumnix's rescheduling (OSDI'24;
// scheduling.md 3.9): instances are ordered by what they have free with their
// queues counted as if they ran (virtual usage), the fullest is paired with the
// freest, and one stream of each pair moves. Here a move must also pay: what all
// streams of both instances gain until the stream's expected end, against the
// time for which the copy keeps both from working. A pair never changes sides,
// and each instance has one move at a time, so no load that was the largest gets
// larger.
func (p MoveParams) Moves(o *Moving) ([]Move, []Verdict) {
	p.fill()
	var sources, takers []*Host
	var verdicts []Verdict
	for i := range o.Hosts {
		h := &o.Hosts[i]
		switch reason := p.blind(o, h); {
		case reason != "":
			if h.requests() > 0 {
				verdicts = append(verdicts, Verdict{h.ID, reason})
			}
		case p.Gives(o, h):
			sources = append(sources, h)
		case h.Takes:
			takers = append(takers, h)
		}
	}
	slices.SortStableFunc(sources, func(a, b *Host) int { return cmp.Compare(b.now(o), a.now(o)) })
	slices.SortStableFunc(takers, func(a, b *Host) int { return cmp.Compare(a.now(o), b.now(o)) })
	var moves []Move
	for _, from := range sources {
		if len(takers) == 0 {
			verdicts = append(verdicts, Verdict{from.ID, ReasonNoRoom})
			continue
		}
		m, why := p.best(o, from, takers[0])
		verdicts = append(verdicts, Verdict{from.ID, why})
		if why == ReasonMoves {
			moves = append(moves, m)
			takers = takers[1:]
		}
	}
	return moves, verdicts
}

// Gives reports whether an instance has so much to do that one of its streams
// should go: only then Moves looks at its Streams and its Turnover.
func (p MoveParams) Gives(o *Moving, h *Host) bool {
	p.fill()
	return p.blind(o, h) == "" && h.now(o) >= p.High
}

// blind says why nothing can be decided about an instance, "" where it can.
func (p *MoveParams) blind(o *Moving, h *Host) Reason {
	switch {
	case h.Load.At == 0 || o.Now-h.Load.At > p.Stale:
		return ReasonStale
	case h.Cost == nil || h.Load.KVTokens == 0:
		return ReasonUnknown
	case h.Busy:
		return ReasonBusy
	}
	return ""
}

// best is the stream whose move from one instance to another pays most.
func (p *MoveParams) best(o *Moving, from, to *Host) (best Move, why Reason) {
	why = ReasonMovedBefore
	for i := range from.Streams {
		s := &from.Streams[i]
		if s.Moves >= p.Most || s.Moved > 0 && o.Now-s.Moved < p.Dwell {
			continue
		}
		if why == ReasonMovedBefore {
			why = ReasonNoRoom
		}
		after := to.with(o, s)
		if after > p.Low || after > from.without(o, s) || to.Load.KVFree < s.Held+s.Expected() {
			continue
		}
		if why == ReasonNoRoom {
			why = ReasonNotWorth
		}
		m := Move{Stream: s.ID, From: from.ID, To: to.ID, Gain: p.gain(from, to, s), Cost: price(from, to, s)}
		if m.Gain > p.Pay*m.Cost && (why != ReasonMoves || m.Gain-m.Cost > best.Gain-best.Cost) {
			best, why = m, ReasonMoves
		}
	}
	return best, why
}

// batch is how many requests an instance computes at a time when n are there.
func (h *Host) batch(n int) int {
	if h.Slots > 0 {
		return min(n, h.Slots)
	}
	return n
}

func (h *Host) requests() int { return h.Load.Running + h.Load.Waiting }

// step is the time of a step with n requests there, in milliseconds, of which
// those that decode hold context tokens.
func (h *Host) step(n, context int) float64 {
	return h.Cost.StepMs(h.batch(n), 0, max(context, 0), 0)
}

// usage is the largest share of what an instance has: places for requests, room
// for KV, and the wanted time per token. Who waits counts as if it ran.
func (h *Host) usage(o *Moving, n, context, kv int) float64 {
	l := &h.Load
	u := float64(l.KVTokens-l.KVFree+l.PrefillTokens+kv) / float64(l.KVTokens)
	if h.Slots > 0 {
		u = max(u, float64(n)/float64(h.Slots))
	}
	if o.TPOT > 0 && n > 0 {
		u = max(u, h.step(n, context)/(float64(o.TPOT)/float64(time.Millisecond)))
	}
	return u
}

// now, with and without are the usage, with a stream more and with one less.
func (h *Host) now(o *Moving) float64 { return h.usage(o, h.requests(), h.Load.DecodeContext, 0) }

func (h *Host) with(o *Moving, s *Stream) float64 {
	return h.usage(o, h.requests()+1, h.Load.DecodeContext+s.Held, s.Held)
}

func (h *Host) without(o *Moving, s *Stream) float64 {
	return h.usage(o, h.requests()-1, h.Load.DecodeContext-s.Held, -s.Held)
}

// full is the share of an instance's room for KV that is taken.
func (h *Host) full() float64 {
	return float64(h.Load.KVTokens-h.Load.KVFree) / float64(h.Load.KVTokens)
}

// crowded reports whether who waits at an instance waits for a place or for room.
func (p *MoveParams) crowded(h *Host) bool {
	return h.Slots > 0 && h.Load.Running >= h.Slots || h.full() >= p.High
}

// gain is how much sooner the tokens come of all streams of both instances, until
// the stream's expected end. Who waits at the source for room is ahead by one
// turnover, and where the KV is about to be full one of its streams would have to
// be computed again.
func (p *MoveParams) gain(from, to *Host, s *Stream) float64 {
	n, m, tokens := from.requests(), to.requests(), float64(s.Expected())
	before, after := from.step(n, from.Load.DecodeContext), from.step(n-1, from.Load.DecodeContext-s.Held)
	there, thereBefore := to.step(m+1, to.Load.DecodeContext+s.Held), to.step(m, to.Load.DecodeContext)
	if m == 0 {
		thereBefore = 0
	}
	own := before - there
	others := float64(from.batch(n)-1)*(before-after) - float64(to.batch(m))*(there-thereBefore)
	saved := tokens * (own + others)
	if p.crowded(from) {
		saved += float64(from.Load.Waiting) * min(from.Turnover, tokens*before)
	}
	if from.full() >= p.High {
		saved += again(from, s) * float64(from.batch(n))
	}
	return saved
}

// price is how long the copy stops all streams of both instances: each copies
// between two of its steps. Where nobody has measured a copy it is taken to cost
// as much as to compute the tokens again, which would be the alternative.
func price(from, to *Host, s *Stream) float64 {
	c, known := to.Copies[from.ID]
	if !known {
		c, known = to.Copies[""]
	}
	ms := c.Predict(s.Held)
	if !known {
		ms = again(to, s)
	}
	return ms * float64(from.batch(from.requests())+to.batch(to.requests()))
}

// again is how long an instance takes to compute a stream's tokens again.
func again(h *Host, s *Stream) float64 { return h.Cost.StepMs(0, s.Held, 0, s.Held*s.Held/2) }

// Turnover is the time until one of the running requests ends, in milliseconds,
// where each has made so many tokens and a step takes stepMs: the requests' ends
// are taken to be independent, each as far off as its beginning.
func Turnover(made []int, stepMs float64) float64 {
	rate := 0.0
	for _, n := range made {
		rate += 1 / float64(max(n, 1))
	}
	if rate == 0 {
		return 0
	}
	return stepMs / rate
}
