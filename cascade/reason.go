package cascade

import (
	"fmt"
	"slices"
)

// Reason says why a tier answered, or why nothing did. The set is closed and
// append-only, because it stands in headers, bodies, metrics and logs.
type Reason string

// The reasons, in the order in which they were added.
const (
	ReasonConfident            Reason = "confident"
	ReasonLowConfidence        Reason = "low_confidence"
	ReasonValidatorFailed      Reason = "validator_failed"
	ReasonPredictedHard        Reason = "predicted_hard"
	ReasonEdgeUnavailable      Reason = "edge_unavailable"
	ReasonEdgeOverloaded       Reason = "edge_overloaded"
	ReasonCapability           Reason = "capability"
	ReasonSessionSticky        Reason = "session_sticky"
	ReasonClientMode           Reason = "client_mode"
	ReasonRiskControl          Reason = "risk_control"
	ReasonHedgeWon             Reason = "hedge_won"
	ReasonBudget               Reason = "budget"
	ReasonCostCap              Reason = "cost_cap"
	ReasonDeadline             Reason = "deadline"
	ReasonOffline              Reason = "offline"
	ReasonCloudError           Reason = "cloud_error"
	ReasonLocalOnly            Reason = "local_only"
	ReasonLocalOnlyUnavailable Reason = "local_only_unavailable"
	ReasonSignalUnusable       Reason = "signal_unusable"
	ReasonShadowExcluded       Reason = "shadow_excluded"
)

var reasons = []Reason{
	ReasonConfident, ReasonLowConfidence, ReasonValidatorFailed, ReasonPredictedHard,
	ReasonEdgeUnavailable, ReasonEdgeOverloaded, ReasonCapability, ReasonSessionSticky,
	ReasonClientMode, ReasonRiskControl, ReasonHedgeWon, ReasonBudget, ReasonCostCap,
	ReasonDeadline, ReasonOffline, ReasonCloudError, ReasonLocalOnly,
	ReasonLocalOnlyUnavailable, ReasonSignalUnusable, ReasonShadowExcluded,
}

// Reasons lists every reason. The caller may change the result.
func Reasons() []Reason { return slices.Clone(reasons) }

// Valid reports whether r is one of the closed set.
func (r Reason) Valid() bool { return slices.Contains(reasons, r) }

// ParseReason accepts exactly the names of the closed set.
func ParseReason(s string) (Reason, error) {
	if r := Reason(s); r.Valid() {
		return r, nil
	}
	return "", fmt.Errorf("unknown reason %q", s)
}

// Tier is where a model runs.
type Tier string

// The two tiers.
const (
	TierEdge  Tier = "edge"
	TierCloud Tier = "cloud"
)
