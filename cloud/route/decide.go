package route

import "time"

// Action is what a decision asks for: Send or Reject.
type Action interface{ isAction() }

// Send routes a request. Prefill is "" when the decode instance serves it
// whole.
type Send struct {
	Prefill string
	Decode  string
	// Reuse says that Prefill's earlier hand-off is used: it runs no leg.
	Reuse bool
}

// Reject says that no instance can take the request.
type Reject struct {
	Cause Reason
	// After is when one of those that could take it wants to be asked again; 0
	// where none has said so.
	After time.Duration
}

func (Send) isAction()   {}
func (Reject) isAction() {}

// Reason explains a decision or why an instance was left out. The set is
// append-only: explanations and metrics show it.
type Reason string

// Reasons of routing.
const (
	ReasonLeastInFlight   Reason = "least_in_flight"
	ReasonOnly            Reason = "only_candidate"
	ReasonSplit           Reason = "split"             // prefill and decode apart
	ReasonWhole           Reason = "whole"             // one instance does all that is left
	ReasonHandoffReused   Reason = "handoff_reused"    // decode moved, the KV stays good
	ReasonPrefillAtDecode Reason = "prefill_at_decode" // last resort: no prefill instance is left
	ReasonNoInstance      Reason = "no_instance"       // none serves the model
	ReasonNoneReady       Reason = "none_ready"        // some do, none is ready
	ReasonAllFailed       Reason = "all_failed"        // each ready one failed this request
	ReasonAllBusy         Reason = "all_busy"          // each ready one has asked for a pause
	ReasonTooLong         Reason = "too_long"

	OutModel    Reason = "model_mismatch"
	OutRole     Reason = "role_mismatch"
	OutNotReady Reason = "not_ready"
	OutFailed   Reason = "failed_before"
	OutContext  Reason = "context_too_small"
	OutKV       Reason = "kv_incompatible"
	OutResume   Reason = "cannot_resume"
	OutWeights  Reason = "other_weights" // began by another model
	OutSuspect  Reason = "suspect"
	OutBusy     Reason = "busy"             // asked for a pause
	OutCold     Reason = "prefix_elsewhere" // the affinity gate keeps to instances that hold the prefix
	OutHot      Reason = "hot_prefix"       // its holders have too much of it
	OutFull     Reason = "kv_full"          // others have room

	ReasonAffinity      Reason = "prefix_affinity" // the gate kept to holders of the prefix
	ReasonGateBroken    Reason = "gate_broken"     // holders exist and are too far behind
	ReasonProduct       Reason = "lmetric_product"
	ReasonPredictedTPOT Reason = "predicted_tpot"
	ReasonShortSuffix   Reason = "short_suffix" // the decode instance prefills the little that it has not cached
	ReasonHotSpread     Reason = "hot_spread"   // a hot prefix gets one more holder
	ReasonStale         Reason = "state_stale"  // no fresh reports: least in flight decides
)

// Stage is a leg of a request.
type Stage string

// Stages of a request.
const (
	StagePrefill Stage = "prefill"
	StageDecode  Stage = "decode"
)

// Score says how one instance fared at one stage: Value (lower is better), or
// the constraint that left it out.
type Score struct {
	Stage    Stage   `json:"stage"`
	Instance string  `json:"instance"`
	Value    float64 `json:"value"`
	Out      Reason  `json:"out,omitempty"`
}

// Decision is an action with its reasons.
type Decision struct {
	Action  Action
	Policy  string
	Reasons []Reason
	Scores  []Score
	// Heat is for Traffic.Learn.
	Heat Heat
	// Fallback says that the preferred form (split) was not possible although
	// the pool has prefill instances.
	Fallback bool
}

// Spec describes a policy to people and to the simulator.
type Spec struct {
	Name     string
	Signals  []string // what it reads
	Knob     string   // what it turns
	Fallback string   // what it does when a signal is missing
	Weakness string   // where it is known to fail
}

// Policy decides where requests go. Implementations are pure.
type Policy interface {
	Spec() Spec
	Decide(*Observation) Decision
}
