package quota

import (
	"fmt"
	"time"
)

// Kind is what a limit counts.
type Kind uint8

// Kinds of limits.
const (
	Requests    Kind = iota
	Input            // prompt tokens
	Output           // generated tokens
	Total            // prompt and generated tokens
	Cost             // nano-dollars
	Escalations      // from edge to cloud
	Concurrent       // open reservations
	numKinds
)

var kindNames = [numKinds]string{"requests", "input_tokens", "output_tokens", "total_tokens", "cost_nanousd", "escalations", "concurrent"}

// String returns the kind's name in configuration and errors.
func (k Kind) String() string {
	if k < numKinds {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// ParseKind reads a name that String writes.
func ParseKind(s string) (Kind, error) {
	for k, name := range kindNames {
		if name == s {
			return Kind(k), nil
		}
	}
	return 0, fmt.Errorf("limit kind %q is none of %v", s, kindNames)
}

// Window is the time over which a limit counts.
type Window uint8

// Windows of limits.
const (
	AtOnce Window = iota // concurrency
	Minute               // a rate
	Day                  // a budget per UTC day
	Month                // a budget per UTC month
	numWindows
)

var windowNames = [numWindows]string{"at_once", "minute", "day", "month"}

// String returns the window's name in configuration and errors.
func (w Window) String() string {
	if w < numWindows {
		return windowNames[w]
	}
	return fmt.Sprintf("Window(%d)", uint8(w))
}

// ParseWindow reads a name that String writes.
func ParseWindow(s string) (Window, error) {
	for w, name := range windowNames {
		if name == s {
			return Window(w), nil
		}
	}
	return 0, fmt.Errorf("limit window %q is none of %v", s, windowNames)
}

// EachKey as a Limit's Key gives every API key its own counter.
const EachKey = "*"

// MaxRate bounds Max and Burst of a rate, so that buckets cannot overflow.
const MaxRate = 100_000_000_000

// Limit is one quota of a tenant. Empty Key, Model, Tier and Class match
// everything.
type Limit struct {
	ID     string // stable: counters survive a change of the other fields
	Key    string // an API key's id, EachKey, or empty
	Model  string
	Tier   string
	Class  string // SLO class
	Kind   Kind
	Window Window
	Max    int64 // per window; in the unit of Kind
	Burst  int64 // rates only: bucket size; 0 stands for Max
	Shadow bool  // count what would be refused, refuse nothing
}

// Validate reports the first thing wrong with a limit.
func (l Limit) Validate() error {
	switch {
	case l.ID == "":
		return fmt.Errorf("limit without an id")
	case l.Kind >= numKinds || l.Window >= numWindows:
		return fmt.Errorf("limit %s: unknown kind or window", l.ID)
	case (l.Kind == Concurrent) != (l.Window == AtOnce):
		return fmt.Errorf("limit %s: %s cannot count %s", l.ID, l.Window, l.Kind)
	case l.Kind == Cost && l.Window == Minute:
		return fmt.Errorf("limit %s: money is limited per day or month, not per minute", l.ID)
	case l.Max < 0 || l.Burst < 0:
		return fmt.Errorf("limit %s: negative", l.ID)
	case l.Burst != 0 && l.Window != Minute:
		return fmt.Errorf("limit %s: only a rate has a burst", l.ID)
	case l.Window == Minute && max(l.Max, l.Burst) > MaxRate:
		return fmt.Errorf("limit %s: a rate is at most %d", l.ID, int64(MaxRate))
	}
	return nil
}

func (l *Limit) burst() int64 {
	if l.Burst == 0 {
		return l.Max
	}
	return l.Burst
}

// Amount is how much an attempt takes of each kind. Total is Input plus
// Output; Concurrent is always one.
type Amount struct {
	Requests    int64
	Input       int64 // tokens
	Output      int64 // tokens
	Cost        int64 // nano-dollars
	Escalations int64
}

func (a *Amount) of(k Kind) int64 {
	switch k {
	case Requests:
		return a.Requests
	case Input:
		return a.Input
	case Output:
		return a.Output
	case Total:
		return a.Input + a.Output
	case Cost:
		return a.Cost
	case Escalations:
		return a.Escalations
	}
	return 1
}

func (a *Amount) valid() bool {
	const most = MaxRate // keeps sums and buckets far from overflow
	counts := uint64(a.Requests) <= most && uint64(a.Input) <= most && uint64(a.Output) <= most && uint64(a.Escalations) <= most
	return counts && a.Cost >= 0 && a.Cost <= 1<<60
}

// estimate is what an attempt reserves: budgets the bound, rates what is
// likely.
type estimate struct{ bound, likely Amount }

func (e *estimate) of(l *Limit) int64 {
	if l.Window == Minute {
		return e.likely.of(l.Kind)
	}
	return e.bound.of(l.Kind)
}

func (e *estimate) valid() bool { return e.bound.valid() && e.likely.valid() }

// fix takes over the counts of calls, which no later news changes.
func (e *estimate) fix(from *estimate) {
	e.bound.Requests, e.bound.Escalations = from.bound.Requests, from.bound.Escalations
	e.likely.Requests, e.likely.Escalations = from.likely.Requests, from.likely.Escalations
}

// Period numbers UTC days since 1970-01-01, or months since 1970-01.
type Period int32

// PeriodAt returns the period of a Day or Month window at a time; other
// windows have the one period 0.
func PeriodAt(w Window, t time.Time) Period {
	switch w {
	case Day:
		return Period(floorDiv(t.Unix(), 86400))
	case Month:
		y, m, _ := t.UTC().Date()
		return Period((y-1970)*12 + int(m) - 1)
	}
	return 0
}

// Start returns when a period of the window begins.
func (p Period) Start(w Window) time.Time {
	if w == Month {
		return time.Date(1970, time.Month(1+int(p)), 1, 0, 0, 0, 0, time.UTC)
	}
	return time.Unix(int64(p)*86400, 0).UTC()
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
