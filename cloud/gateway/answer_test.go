package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
)

// device is a device's way to gateways.
type device struct{ cert *x509.Certificate }

func newDevice(t *testing.T) device {
	t.Helper()
	auth, err := pki.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := auth.Issue(pki.Spec{Peer: pki.Peer{Role: pki.RoleEdge, Name: "00000000-0000-4000-8000-00000000000d", Tenant: tenantA}})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return device{cert}
}

// asks sends a request with the device's certificate and returns the row of its
// last attempt.
func (d device) asks(t *testing.T, r *rig, op, attempt, body string) tenants.UsageRecord {
	t.Helper()
	req := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	req.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{d.cert}}}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(contract.HeaderOperation, op)
	if attempt != "" {
		req.Header.Set(contract.HeaderAttempt, attempt)
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	rows := r.ledger(t)
	return rows[len(rows)-1]
}

const ask2 = `{"model":"big","messages":[{"role":"user","content":"hello"}]}`

// TestAnswerIDs: two gateways that answer an attempt, or one that does so twice,
// write rows with one id; whatever else a device does under the same attempt has
// rows of their own, as all rows that are no whole answer have.
func TestAnswerIDs(t *testing.T) {
	engine := newInstance(t, "m", "mixed")
	g1, g2 := newRig(t, nil, engine), newRig(t, nil, engine)
	d := newDevice(t)
	op, attempt := contract.NewID(), contract.NewID()
	first := d.asks(t, g1, op, attempt, ask1)
	if again := d.asks(t, g2, op, attempt, ask1); again.AttemptID != first.AttemptID || first.AttemptID == attempt {
		t.Errorf("rows %s and %s", first.AttemptID, again.AttemptID)
	}
	if again := d.asks(t, g1, op, attempt, ask1); again.AttemptID != first.AttemptID {
		t.Errorf("asked again, the row is %s", again.AttemptID)
	}
	if _, ok := tenants.Minted(uuid.MustParse(first.AttemptID)); !ok {
		t.Errorf("%s has no time", first.AttemptID)
	}
	seen := map[string]bool{first.AttemptID: true}
	for what, row := range map[string]tenants.UsageRecord{
		"a third time": d.asks(t, g1, op, attempt, ask1), "another body": d.asks(t, g2, op, attempt, ask2),
		"another operation": d.asks(t, g2, contract.NewID(), attempt, ask1), "another attempt": d.asks(t, g2, op, contract.NewID(), ask1),
		"no attempt": d.asks(t, g2, op, "", ask1),
	} {
		if seen[row.AttemptID] {
			t.Errorf("%s is not paid for: row %s", what, row.AttemptID)
		}
		seen[row.AttemptID] = true
	}
}

// TestFailuresStandBesideTheAnswer: an attempt that fails on one gateway has a row
// that is not the answer's, so that the answer of another is paid for.
func TestFailuresStandBesideTheAnswer(t *testing.T) {
	m1, m2 := newInstance(t, "m1", "mixed"), newInstance(t, "m2", "mixed")
	g1, g2 := newRig(t, nil, m1, m2), newRig(t, nil, m1)
	d := newDevice(t)
	op, attempt := contract.NewID(), contract.NewID()
	var failed atomic.Bool // the first that is asked fails
	fail := func(w http.ResponseWriter, _ *http.Request, _ map[string]any) bool {
		if failed.Swap(true) {
			return false
		}
		http.Error(w, `{"error":{"message":"broken"}}`, http.StatusInternalServerError)
		return true
	}
	m1.on(fail)
	m2.on(fail)
	d.asks(t, g1, op, attempt, ask1)
	rows := g1.ledger(t)
	other := d.asks(t, g2, op, attempt, ask1)
	if len(rows) != 2 || rows[0].Outcome != tenants.OutcomeUpstreamError || rows[0].AttemptID == other.AttemptID || rows[1].AttemptID != other.AttemptID {
		t.Errorf("rows %+v, at the other gateway %s", rows, other.AttemptID)
	}
}

// TestAnswersAreForgotten: the memory of ids is bounded, and the newest stay.
func TestAnswersAreForgotten(t *testing.T) {
	var a answers
	a.take("first")
	for range 3 * keptAnswers {
		a.take(uuid.NewString())
	}
	if n := len(a.counts) + len(a.older); n > 2*keptAnswers {
		t.Errorf("%d ids are kept", n)
	}
	for i, want := range []bool{true, true, false} {
		if got := a.take("first"); got != want {
			t.Errorf("use %d after it was forgotten: %v", i, got)
		}
	}
	for range keptAnswers {
		a.take(uuid.NewString())
	}
	if a.take("first") {
		t.Error("a full id was forgotten too soon")
	}
}
