package spool

import (
	"testing"
	"time"

	"github.com/weirhq/weir/tenants"
)

// TestSettledUnderAnotherID: the row of a whole answer has another id than its
// admission. A process that dies before it has marked the admission leaves no
// gateway_lost row beside it; an attempt of the same operation that was not
// settled has one.
func TestSettledUnderAnotherID(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	s.mu.Lock()
	for i := range 2 {
		admitted := record(i)
		admitted.OperationID, admitted.Attempt = record(0).OperationID, int64(1+i)
		admitted.StartedAt = record(0).StartedAt.Add(time.Duration(i))
		admitted.Outcome, admitted.UsageSource = tenants.OutcomeGatewayLost, tenants.UsageEstimated
		if _, _, err := s.append(kindAdmission, admitted); err != nil {
			t.Fatal(err)
		}
	}
	settled := record(0)
	settled.AttemptID, settled.Attempt = record(7).AttemptID, 2
	if _, _, err := s.append(kindSettlement, settled); err != nil {
		t.Fatal(err)
	}
	s.mu.Unlock()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir})
	if st := s.Stats(); st.Recovered != 1 || st.Pending != 2 {
		t.Errorf("%+v", st)
	}
	got := map[string]tenants.Outcome{}
	for _, r := range drainAll(t, s) {
		got[r.AttemptID] = r.Outcome
	}
	if len(got) != 2 || got[settled.AttemptID] != tenants.OutcomeOK || got[record(1).AttemptID] != tenants.OutcomeGatewayLost {
		t.Errorf("delivered %v", got)
	}
}
