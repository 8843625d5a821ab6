package control

import (
	"crypto/ed25519"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
)

// learnedReport is of a device on which the edge is right with probability
// sigmoid(.5 x + bias).
func learnedReport(seed uint64, bias float64) learn.Report {
	t := learn.NewTable(learn.DefaultOptions(), "fp", cascade.FeatureProduct)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 600 {
		x, edge := 3*rng.NormFloat64(), 0.0
		if rng.Float64() < cascade.Sigmoid(.5*x+bias) {
			edge = 1
		}
		t.Observe(learn.Outcome{Cell: "batch", X: []float64{x}, Edge: edge, Cloud: 1, CloudKnown: true, Propensity: 1})
	}
	return t.Report()
}

func (d *device) learned(t *testing.T, r learn.Report) tenants.Prior {
	t.Helper()
	a := d.call(t, http.MethodPost, "cascade", r)
	if a.status != http.StatusOK {
		t.Fatalf("%s", a)
	}
	p, err := tenants.VerifyPrior(a.body, map[string]ed25519.PublicKey{tenants.SignerID(d.SnapshotKey): d.SnapshotKey})
	if err != nil {
		t.Fatal(err)
	}
	return *p
}

// Devices of one tenant share what they learned; each gets the others' view,
// signed, and none reaches another tenant.
func TestDevicesShareAPrior(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	acme, other := p.newTenant(t, "acme"), p.newTenant(t, "other")
	a, b, foreign := p.joinDevice(t, acme), p.joinDevice(t, acme), p.joinDevice(t, other)

	first := a.learned(t, learnedReport(1, -1))
	if first.Devices != 0 || first.TenantID != acme || first.Values[0] != 0 || first.Values[1] != 1 {
		t.Errorf("alone a device keeps what it started from: %+v", first)
	}
	foreign.learned(t, learnedReport(2, 1.5))
	got := b.learned(t, learn.NewTable(learn.DefaultOptions(), "fp", cascade.FeatureProduct).Report())
	if got.Devices != 1 || !(got.Values[0] < -.3) || !(got.Values[1] < .95) {
		t.Errorf("a new device starts from %+v", got)
	}
	if g := b.learned(t, learn.NewTable(learn.DefaultOptions(), "other weights", cascade.FeatureProduct).Report()); g.Devices != 0 {
		t.Errorf("another model starts from %+v", g)
	}
	if _, err := tenants.Verify([]byte(fmt.Sprint(got)), nil); err == nil {
		t.Error("a prior passes for a snapshot")
	}
}

func TestReportsAreChecked(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	d := p.joinDevice(t, p.newTenant(t, "acme"))
	bad := learnedReport(3, 0)
	bad.Cells[0].Gradient[0] = 1e12
	for name, body := range map[string]any{
		"impossible numbers": bad,
		"unknown member":     `{"fingerprint":"fp","tenant_id":"x"}`,
		"no object":          `[]`,
	} {
		if a := d.call(t, http.MethodPost, "cascade", body); a.status != http.StatusBadRequest {
			t.Errorf("%s: %s", name, a)
		}
	}
	if a := send(t, http.DefaultClient, http.MethodPost, p.plain.URL+"/edge/v1/cascade", "", learnedReport(3, 0)); a.status != http.StatusUnauthorized {
		t.Errorf("without a certificate: %s", a)
	}
}

// A risk target that the tenant's own traffic cannot keep is refused when it is
// written, with the numbers.
func TestInfeasibleRiskIsRefused(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	acme := p.newTenant(t, "acme")
	put := func(maxRate float64) answer {
		return p.admin(t, http.MethodPut, "policies", map[string]any{"tenant_id": acme,
			"spec": map[string]any{"risk": map[string]any{"alpha": .05, "delta": .1, "max_rate": maxRate}}})
	}
	if a := put(.1); a.status != http.StatusOK {
		t.Errorf("nothing is known and it is refused: %s", a)
	}
	p.joinDevice(t, acme).learned(t, learnedReport(4, -1)) // the edge is wrong in about two of three
	if a := put(.1); a.status != http.StatusBadRequest || !strings.Contains(a.String(), "infeasible") || !strings.Contains(a.String(), "10.0 %") {
		t.Errorf("max_rate .1: %s", a)
	}
	if a := put(.9); a.status != http.StatusOK {
		t.Errorf("max_rate .9: %s", a)
	}
	if !math.IsNaN(baseRisk(reports(nil), "")) {
		t.Error("a risk is known without reports")
	}
}
