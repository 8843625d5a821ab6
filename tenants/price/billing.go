package price

import (
	"fmt"

	"github.com/weirhq/weir/tenants"
)

// Charge says what of an attempt is charged.
type Charge uint8

// The rules of charging.
const (
	ChargeNothing   Charge = iota
	ChargeDelivered        // everything, but nothing if no token was delivered
	ChargeAll              // everything
)

// String names the rule, as the console shows it.
func (c Charge) String() string {
	switch c {
	case ChargeNothing:
		return "nothing"
	case ChargeDelivered:
		return "if delivered"
	case ChargeAll:
		return "everything"
	}
	return fmt.Sprintf("Charge(%d)", uint8(c))
}

// Billing is the rule for each outcome. A missing outcome is not charged.
type Billing map[tenants.Outcome]Charge

// DefaultBilling charges whoever got an answer, and nobody for what failed
// before its first token. A lost gateway is our fault and its counts are
// estimates, so its row is free.
func DefaultBilling() Billing {
	return Billing{
		tenants.OutcomeOK:                ChargeAll,
		tenants.OutcomeClientCancelled:   ChargeDelivered,
		tenants.OutcomeUpstreamTruncated: ChargeDelivered,
		tenants.OutcomeUpstreamError:     ChargeNothing,
		tenants.OutcomeDeadline:          ChargeDelivered,
		tenants.OutcomeQuotaExceeded:     ChargeDelivered,
		tenants.OutcomeRejected:          ChargeNothing,
		tenants.OutcomeShed:              ChargeNothing,
		tenants.OutcomeEscalated:         ChargeAll,
		tenants.OutcomeSuperseded:        ChargeNothing,
		tenants.OutcomeGatewayLost:       ChargeNothing,
	}
}

// Settle prices a ledger row: it sets PriceVersion and CostNanoUSD from the
// row's tier, model, start, tokens and outcome.
func (b Billing) Settle(r *tenants.UsageRecord, book *Book) error {
	p, _ := book.At(r.Tier, r.Model, r.StartedAt)
	r.PriceVersion, r.CostNanoUSD = p.Version, 0
	rule := b[r.Outcome]
	if rule == ChargeNothing || rule == ChargeDelivered && r.OutputTokens == 0 {
		return nil
	}
	cost, err := Cost(p, Tokens{r.InputTokens, r.CachedTokens, r.OutputTokens})
	if err != nil {
		return fmt.Errorf("price attempt %s: %w", r.AttemptID, err)
	}
	r.CostNanoUSD = cost
	return nil
}
