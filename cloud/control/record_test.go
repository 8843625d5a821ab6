package control

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/tenants"
)

// aRow is an ordinary ledger row of now.
func aRow(tenantID, keyID string) tenants.UsageRecord {
	return tenants.UsageRecord{
		AttemptID: uuid.Must(uuid.NewV7()).String(), OperationID: uuid.Must(uuid.NewV7()).String(), TenantID: tenantID, KeyID: keyID,
		Tier: tenants.Cloud, Model: "hub-cloud", Outcome: tenants.OutcomeOK, UsageSource: tenants.UsageUpstream,
		InputTokens: 5, OutputTokens: 2, StartedAt: time.Now().UTC(), TotalMicros: 10,
	}
}

// record begins and settles an attempt.
func (p *plane) record(t *testing.T, r tenants.UsageRecord) {
	t.Helper()
	e, err := p.Begin(&r)
	if err == nil {
		err = e.Settle(&r)
	}
	if err != nil {
		t.Fatal(err)
	}
}
