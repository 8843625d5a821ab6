package cascade

import "time"

// Session keeps a conversation on the cloud after an escalation, for the sake
// of its prompt cache and of one style. It is a value; the caller stores it by
// the client's session name.
type Session struct {
	Pinned bool      // the next turn goes to the cloud
	Calm   int       // turns in a row that the edge would have answered well
	Tool   bool      // a tool call is open: the tier that made it must go on
	Last   time.Time // of the last turn
}

// StickyOptions say when a session is released.
type StickyOptions struct {
	Turns      int           // calm turns in a row; 0 counts as 2
	Hysteresis float64       // by which the gain must be below theta; 0 counts as .05
	TTL        time.Duration // idle time; 0 counts as 30 minutes
}

func (o StickyOptions) fill() StickyOptions {
	if o.Turns <= 0 {
		o.Turns = 2
	}
	if o.Hysteresis <= 0 {
		o.Hysteresis = .05
	}
	if o.TTL <= 0 {
		o.TTL = 30 * time.Minute
	}
	return o
}

// Sticky reports whether the next turn goes to the cloud.
func (s Session) Sticky(o StickyOptions, now time.Time) bool {
	return s.Pinned && now.Sub(s.Last) < o.fill().TTL
}

// Turn is what became of one turn of a session.
type Turn struct {
	Tier Tier
	// Gain and Theta are the prediction for this turn, known also when the
	// cloud was asked at once; Known says whether there was one.
	Gain, Theta float64
	Known       bool
	// ToolCall says that the answer called a tool whose result is awaited.
	ToolCall bool
}

// Next returns the session after a turn.
func (s Session) Next(t Turn, o StickyOptions, now time.Time) Session {
	o = o.fill()
	if now.Sub(s.Last) >= o.TTL {
		s = Session{}
	}
	s.Last, s.Tool = now, t.ToolCall
	if t.Tier == TierEdge {
		s.Pinned, s.Calm = false, 0
		return s
	}
	if t.Known && t.Gain < t.Theta-o.Hysteresis {
		s.Calm++
	} else {
		s.Calm = 0
	}
	s.Pinned = s.Tool || s.Calm < o.Turns
	return s
}
