package tenants

import "slices"

// Outcome is how an attempt ended. The set is closed and append-only: the
// values stand in ledgers and on the wire.
type Outcome string

// Outcomes of attempts.
const (
	OutcomeOK                Outcome = "ok"
	OutcomeClientCancelled   Outcome = "client_cancelled"   // the client went away or cancelled
	OutcomeUpstreamTruncated Outcome = "upstream_truncated" // the stream broke after the first token
	OutcomeUpstreamError     Outcome = "upstream_error"     // the instance failed before the first token
	OutcomeDeadline          Outcome = "deadline"           // the request's deadline ended it
	OutcomeQuotaExceeded     Outcome = "quota_exceeded"     // a strict budget ended it mid-stream
	OutcomeRejected          Outcome = "rejected"           // refused before any model ran
	OutcomeShed              Outcome = "shed"               // dropped from the queue under load
	OutcomeEscalated         Outcome = "escalated"          // the edge's draft gave way to the cloud
	OutcomeSuperseded        Outcome = "superseded"         // another attempt of the operation won
	OutcomeGatewayLost       Outcome = "gateway_lost"       // admitted, but its gateway died unsettled
)

// Outcomes lists every outcome.
func Outcomes() []Outcome { return slices.Clone(outcomes) }

var outcomes = []Outcome{
	OutcomeOK, OutcomeClientCancelled, OutcomeUpstreamTruncated, OutcomeUpstreamError,
	OutcomeDeadline, OutcomeQuotaExceeded, OutcomeRejected, OutcomeShed,
	OutcomeEscalated, OutcomeSuperseded, OutcomeGatewayLost,
}

// Valid reports whether o is one of the outcomes above.
func (o Outcome) Valid() bool { return slices.Contains(outcomes, o) }

// Ran reports whether a model may have worked for an attempt that ended so.
func (o Outcome) Ran() bool { return o != OutcomeRejected && o != OutcomeShed }

// UsageSource is where a row's token counts come from.
type UsageSource string

// Sources of token counts, most to least trusted. A zero that upstream
// reported is a zero, not a missing value.
const (
	UsageUpstream  UsageSource = "upstream"  // reported by the instance
	UsageCounted   UsageSource = "counted"   // counted by us as tokens passed
	UsageEstimated UsageSource = "estimated" // from the reservation
)

// Valid reports whether s is one of the sources above.
func (s UsageSource) Valid() bool {
	return s == UsageUpstream || s == UsageCounted || s == UsageEstimated
}
