package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/report"
)

// wholeAnswer is the row of a whole answer of a gateway process to a device's
// attempt.
func wholeAnswer(attempt uuid.UUID, epoch string, started time.Time) tenants.UsageRecord {
	r := row(started)
	r.AttemptID, r.DeviceID, r.NodeEpoch = tenants.AnswerID(attempt, []byte("request")), device1, epoch
	return r
}

// TestAnsweredTwice: of two gateways' answers to an attempt the first that comes
// is paid for, in either order and also at midnight; the other is told apart from
// a replay. What a dead gateway began has a row beside it, in any order.
func TestAnsweredTwice(t *testing.T) {
	s := newStore(t, testpg.Start(t))
	midnight := time.Now().UTC().Truncate(24 * time.Hour)
	for _, began := range []time.Time{time.Now(), midnight.Add(-time.Millisecond)} {
		attempt := uuid.Must(uuid.NewV7())
		ms := began.UnixMilli()
		for i := range 6 {
			attempt[i] = byte(ms >> (40 - 8*i))
		}
		for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			attempt[15]++
			first, second := wholeAnswer(attempt, "e1", began), wholeAnswer(attempt, "e2", began.Add(2*time.Second))
			lost := row(began)
			lost.DeviceID, lost.Outcome, lost.UsageSource, lost.CostNanoUSD, lost.OutputTokens = device1, tenants.OutcomeGatewayLost, tenants.UsageEstimated, 0, 0
			all := []*tenants.UsageRecord{&first, &second, &lost}
			for _, r := range all {
				r.OperationID = first.OperationID
			}
			var twice []tenants.UsageRecord
			for _, i := range order {
				twice = append(twice, insert(t, s, *all[i]).Twice...)
				insert(t, s, *all[i]) // and comes again
			}
			want := second
			if slices.Index(order, 1) < slices.Index(order, 0) {
				want = first
			}
			// The replay of the second answer is no second answer.
			if len(twice) != 1 || twice[0] != want {
				t.Errorf("%v: given back %+v, want %+v", order, twice, want)
			}
			got := usage(t, s, report.Selection{TenantID: tenantA, OperationID: first.OperationID})
			outcomes, cost := map[tenants.Outcome]int{}, int64(0)
			for _, r := range got {
				outcomes[r.Outcome]++
				cost += r.CostNanoUSD
			}
			if len(got) != 2 || outcomes[tenants.OutcomeOK] != 1 || outcomes[tenants.OutcomeGatewayLost] != 1 || cost != first.CostNanoUSD {
				t.Errorf("%v: the ledger has %+v", order, got)
			}
		}
	}
}

// TestAnsweredTwiceInOneBatch: a gateway that was asked twice over two ways
// writes both rows at once.
func TestAnsweredTwiceInOneBatch(t *testing.T) {
	s := newStore(t, testpg.Start(t))
	attempt := uuid.Must(uuid.NewV7())
	first := wholeAnswer(attempt, "e1", time.Now())
	second := wholeAnswer(attempt, "e1", time.Now().Add(time.Second))
	other := row(time.Now())
	res := insert(t, s, first, second, other, first)
	if res.Inserted != 2 || res.Duplicates != 2 || len(res.Twice) != 1 || res.Twice[0] != second {
		t.Errorf("%+v", res)
	}
	if sums := content(t, s); sums[1] == "" {
		t.Error("no sums")
	}
	if got := usage(t, s, report.Selection{TenantID: tenantA}); len(got) != 2 {
		t.Errorf("the ledger has %+v", got)
	}
}
