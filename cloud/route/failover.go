package route

// Failure is what went wrong with a leg.
type Failure struct {
	Stage Stage
	Kind  FailureKind
	// Status is the HTTP status for FailedStatus.
	Status int
	// Shown says that the client has seen a part of the answer, and Resumable
	// that another instance can go on where that part ends.
	Shown, Resumable bool
}

// FailureKind is how a leg failed.
type FailureKind string

// Kinds of failures of a leg.
const (
	FailedConnect FailureKind = "connect"    // the request never reached the instance
	FailedStatus  FailureKind = "status"     // it answered with an error status, or said one in its stream
	FailedTimeout FailureKind = "first_byte" // no first token in time
	FailedStall   FailureKind = "stall"      // the stream stood still
	FailedBroken  FailureKind = "broken"     // the answer broke off or cannot be read
)

// Next is what becomes of the request.
type Next string

// What may become of a request after a failure.
const (
	NextElsewhere Next = "elsewhere" // another attempt, which the client does not notice
	NextContinue  Next = "continue"  // another attempt that goes on after what the client has seen
	NextRefuse    Next = "refuse"    // the instance's words are the answer
	NextCut       Next = "cut"       // the stream ends with an error event
)

// Verdict is what follows from a failure.
type Verdict struct {
	Next Next
	// KeepHandoff says that the prefill leg's hand-off is certainly unread.
	KeepHandoff bool
	// Suspect says that the instance itself looks ill: it gets no new work while
	// there is another, until it answers a health probe.
	Suspect bool
	// Counts is a failure for the instance's circuit breaker. A refusal of the
	// request, or of more work, is none.
	Counts bool
}

// rule is a row of the failover policy: what a symptom says of the instance.
type rule struct {
	unread, suspect, counts bool
	final                   bool // the request's own fault: the same everywhere
}

// symptom sorts failures by what they say.
type symptom string

const (
	unreachable symptom = "unreachable"
	brokeOff    symptom = "broke off"
	silent      symptom = "silent"
	faulty      symptom = "faulty"    // 5xx
	busy        symptom = "busy"      // 503, 429, 408: it has not begun
	distrusts   symptom = "distrusts" // 401, 403, 407: it does not accept this gateway
	refuses     symptom = "refuses"   // any other 4xx: the request is wrong
)

// policy is the failover policy (protocols.md 2.6): other proxies agree that a
// refused request is never tried again and that nothing is replayed after the
// first byte; they differ in the rest.
var policy = map[symptom]rule{
	unreachable: {unread: true, suspect: true, counts: true},
	brokeOff:    {suspect: true, counts: true},
	silent:      {suspect: true, counts: true},
	faulty:      {counts: true},
	busy:        {unread: true},
	distrusts:   {unread: true, counts: true},
	refuses:     {final: true},
}

// AfterFailure applies the failover policy.
func AfterFailure(f Failure) Verdict {
	r := policy[f.symptom()]
	v := Verdict{Suspect: r.suspect, Counts: r.counts, KeepHandoff: r.unread && f.Stage == StageDecode && !f.Shown}
	switch {
	case f.Shown && f.Resumable && !r.final:
		v.Next = NextContinue
	case f.Shown:
		v.Next = NextCut
	case r.final:
		v.Next = NextRefuse
	default:
		v.Next = NextElsewhere
	}
	return v
}

func (f Failure) symptom() symptom {
	switch f.Kind {
	case FailedConnect:
		return unreachable
	case FailedTimeout, FailedStall:
		return silent
	case FailedStatus:
		return statusSymptom(f.Status)
	}
	return brokeOff
}

func statusSymptom(status int) symptom {
	switch status {
	case 401, 403, 407:
		return distrusts
	case 408, 429, 503:
		return busy
	}
	if status >= 400 && status < 500 {
		return refuses
	}
	return faulty
}
