package fake

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Fault is something that goes wrong with a completion request.
type Fault string

// Faults. Those marked (token) strike before the token that a Script names,
// those marked (door) before anything is done for the request, as engines refuse
// what they have no room for; the others before the answer's head.
const (
	FaultReset       Fault = "reset"        // (token) the connection is reset; before a head it is cut inside of it
	FaultCut         Fault = "cut"          // (token) the stream dies with its connection
	FaultStall       Fault = "stall"        // (token) the stream stands still until the client goes
	FaultSlow        Fault = "slow"         // (token) one wait of Script.Delay
	FaultMalformed   Fault = "malformed"    // (token) an event that is no JSON
	FaultErrorEvent  Fault = "error-event"  // (token) status 200, then the engine's own error
	FaultLongLine    Fault = "long-line"    // (token) a line of 5 MiB
	FaultTruncated   Fault = "truncated"    // (token) JSON that breaks off, and a clean end
	FaultNoDone      Fault = "no-done"      // (token) a clean end without [DONE]
	FaultStatus500   Fault = "500"          // an internal error
	FaultBusy        Fault = "busy"         // (door) 503 with Retry-After
	FaultRateLimit   Fault = "rate-limit"   // (door) 429 with Retry-After
	FaultContentType Fault = "content-type" // 200 with a page of HTML
	FaultEmpty       Fault = "empty"        // 200 and nothing
	FaultLease       Fault = "lease"        // a prefill leg whose blocks are gone at once
	FaultTransfer    Fault = "transfer"     // a decode leg whose blocks cannot be fetched
)

// Faults lists every Fault.
func Faults() []Fault {
	return []Fault{FaultReset, FaultCut, FaultStall, FaultSlow, FaultMalformed, FaultErrorEvent, FaultLongLine, FaultTruncated, FaultNoDone,
		FaultStatus500, FaultBusy, FaultRateLimit, FaultContentType, FaultEmpty, FaultLease, FaultTransfer}
}

// Script says when a Fault strikes. Its text form is
// FAULT[@TOKENS][:LEG][/EVERY][xTIMES], e.g. "stall@3:decode" or, for an engine
// that flaps, "busy/2".
type Script struct {
	Fault Fault
	After int // tokens that leave before it strikes
	Leg   Leg // only such requests; "" is any
	Every int // each Every-th matching request; 0 is each
	Times int // at most so often; 0 has no bound
}

func (s Script) String() string {
	out := string(s.Fault)
	for _, part := range []struct {
		mark  string
		value int
	}{{"@", s.After}, {":", 0}, {"/", s.Every}, {"x", s.Times}} {
		switch {
		case part.mark == ":" && s.Leg != "":
			out += ":" + string(s.Leg)
		case part.value != 0:
			out += part.mark + strconv.Itoa(part.value)
		}
	}
	return out
}

// ParseScript reads the text form.
func ParseScript(text string) (Script, error) {
	var s Script
	rest := text
	for _, known := range Faults() {
		if strings.HasPrefix(text, string(known)) && len(known) > len(s.Fault) {
			s.Fault, rest = known, text[len(known):]
		}
	}
	if s.Fault == "" {
		return s, fmt.Errorf("fault %.40q: known are %v", text, Faults())
	}
	for rest != "" {
		mark, value := rest[0], rest[1:]
		if end := strings.IndexAny(value, "@:/x"); end >= 0 {
			value = value[:end]
		}
		rest = rest[1+len(value):]
		if err := s.set(mark, value); err != nil {
			return s, fmt.Errorf("fault %.40q: %w", text, err)
		}
	}
	return s, nil
}

func (s *Script) set(mark byte, value string) error {
	if mark == ':' {
		switch s.Leg = Leg(value); s.Leg {
		case Whole, Prefill, Decode:
			return nil
		}
		return fmt.Errorf("leg %q: use whole, prefill or decode", value)
	}
	n, err := strconv.ParseUint(value, 10, 20)
	if err != nil {
		return fmt.Errorf("%q after %q: want a small number", value, mark)
	}
	switch mark {
	case '@':
		s.After = int(n)
	case '/':
		s.Every = int(n)
	case 'x':
		s.Times = int(n)
	default:
		return fmt.Errorf("want @TOKENS, :LEG, /EVERY or xTIMES, not %q", string(mark)+value)
	}
	return nil
}

// scripts are an engine's faults, with how often each was met.
type scripts struct {
	mu   sync.Mutex
	list []script
}

type script struct {
	Script
	met, struck int
}

func (s *scripts) set(list []Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = s.list[:0]
	for _, one := range list {
		s.list = append(s.list, script{Script: one})
	}
}

// pick returns the fault that strikes a request; nil is none.
func (s *scripts) pick(leg Leg) *Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.list {
		one := &s.list[i]
		if one.Leg != "" && one.Leg != leg || one.Times > 0 && one.struck == one.Times {
			continue
		}
		one.met++
		if one.Every > 0 && one.met%one.Every != 0 {
			continue
		}
		one.struck++
		picked := one.Script
		return &picked
	}
	return nil
}
