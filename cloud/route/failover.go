package route

// Failure is what went wrong with a leg before its first token.
type Failure struct {
	Stage Stage
	Kind  FailureKind
	// Status is the HTTP status for FailedStatus.
	Status int
}

// FailureKind is how a leg failed.
type FailureKind string

// Kinds of failures of a leg.
const (
	FailedConnect FailureKind = "connect"    // the request never reached the instance
	FailedStatus  FailureKind = "status"     // it answered with an error status
	FailedTimeout FailureKind = "first_byte" // no first token in time
	FailedBroken  FailureKind = "broken"     // the answer broke off or cannot be read
)

// Verdict is what follows from a failure.
type Verdict struct {
	// Retry asks for another attempt without the failed instance.
	Retry bool
	// KeepHandoff says that the prefill leg's hand-off is certainly unread.
	KeepHandoff bool
	// Suspect says that the instance itself looks ill: it takes no new work
	// until it answers a health probe.
	Suspect bool
}

// AfterFailure is the failover policy (protocols.md 2.6). A refusal of the
// request itself (4xx) is the same everywhere and is handed to the client; a
// failure of the instance is tried elsewhere. It is asked only before the
// first token: after it nothing is ever replayed.
func AfterFailure(f Failure) Verdict {
	switch f.Kind {
	case FailedConnect:
		return Verdict{Retry: true, KeepHandoff: f.Stage == StageDecode, Suspect: true}
	case FailedBroken:
		return Verdict{Retry: true, Suspect: true}
	case FailedTimeout:
		return Verdict{Retry: true}
	}
	if f.Status >= 400 && f.Status < 500 && !ofInstance(f.Status) {
		return Verdict{}
	}
	return Verdict{Retry: true}
}

// ofInstance reports whether a 4xx speaks of the instance rather than of the
// request: full, slow, or not accepting this gateway.
func ofInstance(status int) bool {
	switch status {
	case 401, 403, 407, 408, 429:
		return true
	}
	return false
}
