package learning

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/tenants"
)

// cloud answers with one envelope and keeps what it was told.
type cloud struct {
	envelope []byte
	status   int
	told     learn.Report
	t        *testing.T
}

func (c *cloud) Do(_ context.Context, r uplink.Request) (*uplink.Response, error) {
	if r.Path != PathCascade || r.Method != http.MethodPost {
		c.t.Errorf("%s %s", r.Method, r.Path)
	}
	if err := json.Unmarshal(r.Body, &c.told); err != nil {
		c.t.Error(err)
	}
	return &uplink.Response{Response: &http.Response{StatusCode: c.status, Body: io.NopCloser(bytes.NewReader(c.envelope))}}, nil
}

func TestExchange(t *testing.T) {
	f := start(t, t.TempDir(), calibration(), Limits{})
	defer f.stop(t)
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, foreign, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	good := tenants.Prior{TenantID: "acme", Fingerprint: "fp", Features: []string{"product"}, Values: []float64{-1, .5}, Devices: 3}
	for name, tt := range map[string]struct {
		change func(*tenants.Prior)
		key    ed25519.PrivateKey
		status int
	}{
		"of another tenant":   {func(p *tenants.Prior) { p.TenantID = "other" }, key, 200},
		"of another model":    {func(p *tenants.Prior) { p.Fingerprint = "x" }, key, 200},
		"of other features":   {func(p *tenants.Prior) { p.Features[0] = "mean" }, key, 200},
		"of another shape":    {func(p *tenants.Prior) { p.Values = p.Values[:1] }, key, 200},
		"of nobody":           {func(p *tenants.Prior) { p.Devices = 0 }, key, 200},
		"signed by a foreign": {func(*tenants.Prior) {}, foreign, 200},
		"refused":             {func(*tenants.Prior) {}, key, 503},
	} {
		p := good
		p.Features = []string{"product"}
		tt.change(&p)
		envelope, err := p.Sign(tt.key)
		if err != nil {
			t.Fatal(err)
		}
		err = f.share(t.Context(), Peer{&cloud{envelope: envelope, status: tt.status, t: t}, "acme", public})
		if (err == nil) != (name == "of nobody") {
			t.Errorf("%s: %v", name, err)
		}
		if b := f.View("new").Calibration.Bias; b != 0 {
			t.Errorf("%s: a new cell starts at bias %v", name, b)
		}
	}
	envelope, err := good.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{envelope: envelope, status: 200, t: t}
	if err := f.share(t.Context(), Peer{c, "acme", public}); err != nil {
		t.Fatal(err)
	}
	v := f.View("new")
	if v.Calibration.Bias != -1 || v.Calibration.Terms[0].Weight != .5 || v.Calibration.Threshold != .75 {
		t.Errorf("a new cell starts at %+v", v.Calibration)
	}
	if err := c.told.Check(); err != nil || c.told.Fingerprint != "fp" {
		t.Errorf("told %+v: %v", c.told, err)
	}
}

// What other devices have learned outlives a restart, but for one with another
// calibration: the prior was merged from the old one.
func TestAdoptedPriorOutlivesARestart(t *testing.T) {
	dir := t.TempDir()
	f := start(t, dir, calibration(), Limits{})
	p := tenants.Prior{TenantID: "acme", Fingerprint: "fp", Features: []string{"product"}, Values: []float64{-1, .5}, Devices: 3}
	if err := f.adopt(&p); err != nil {
		t.Fatal(err)
	}
	f.Save(0)
	f.stop(t)
	again := start(t, dir, calibration(), Limits{})
	again.stop(t)
	if c := again.View("new").Calibration; c.Bias != -1 || c.Terms[0].Weight != .5 {
		t.Errorf("after a restart a new cell starts at %+v", c)
	}
	other := calibration()
	other.Bias = .25
	changed := start(t, dir, other, Limits{})
	changed.stop(t)
	if c := changed.View("new").Calibration; c.Bias != .25 || c.Terms[0].Weight != 1 {
		t.Errorf("with another calibration a new cell starts at %+v", c)
	}
}

// A report after some traffic is one that the cloud takes.
func TestReportsAreTaken(t *testing.T) {
	f := start(t, t.TempDir(), calibration(), Limits{PerHour: 60, PerDay: 1 << 40})
	f.serve(2000, rand.New(rand.NewPCG(9, 9)))
	f.stop(t)
	c := &cloud{status: 503, t: t}
	if err := f.share(t.Context(), Peer{Cloud: c}); err == nil || errors.Is(err, errPrior) {
		t.Errorf("%v", err)
	}
	if err := c.told.Check(); err != nil || len(c.told.Cells) != 1 || c.told.Cells[0].N < 500 || c.told.Cells[0].Helps.Weight < 500 {
		t.Errorf("%v: %+v", err, c.told)
	}
}
