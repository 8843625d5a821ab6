package control

import (
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
)

// join sends a join token with a fresh key.
func (p *plane) join(t *testing.T, token string) answer {
	t.Helper()
	csr, _, err := pki.NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, pki.ClientConfig(nil, p.Authority().Pool()))
	return send(t, c, http.MethodPost, p.url+"/edge/v1/join", "", JoinRequest{Token: token, CSR: string(csr)})
}

func edgeRow() tenants.UsageRow {
	return tenants.UsageRow{
		AttemptID: uuid.Must(uuid.NewV7()).String(), OperationID: uuid.Must(uuid.NewV7()).String(),
		Tier: tenants.Edge, Model: "hub-edge", Outcome: tenants.OutcomeOK, UsageSource: tenants.UsageCounted,
		InputTokens: 20, OutputTokens: 4, StartedAt: time.Now().UTC(), TotalMicros: 900,
	}
}

func usageBatch(rows ...tenants.UsageRow) tenants.UsageBatch { return tenants.UsageBatch{Rows: rows} }

func TestOneOfManyJoinsWinsOverHTTP(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	tenantID := p.newTenant(t, "acme")
	token := p.newJoinToken(t, tenantID)
	csr, _, err := pki.NewCSR() // even with one and the same key
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, pki.ClientConfig(nil, p.Authority().Pool()))
	// One connection for all: 200 handshakes at once would only test the CPU.
	send(t, c, http.MethodGet, p.url+"/edge/v1/snapshot", "", nil)
	var won, used atomic.Int32
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			switch a := send(t, c, http.MethodPost, p.url+"/edge/v1/join", "", JoinRequest{Token: token, CSR: string(csr)}); a.status {
			case http.StatusOK:
				won.Add(1)
			case http.StatusConflict:
				used.Add(1)
			default:
				t.Errorf("got %s", a)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || used.Load() != 199 {
		t.Errorf("%d won, %d were told that the token is used", won.Load(), used.Load())
	}
	var devs struct{ Data []struct{ ID string } }
	p.admin(t, http.MethodGet, "devices?tenant_id="+tenantID, nil).into(t, &devs)
	if len(devs.Data) != 1 {
		t.Errorf("%d devices", len(devs.Data))
	}
}

func TestJoinRefusals(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	token := p.newJoinToken(t, p.newTenant(t, "acme"))
	if a := send(t, http.DefaultClient, http.MethodPost, p.plain.URL+"/edge/v1/join", "", JoinRequest{Token: token}); a.status != http.StatusForbidden {
		t.Errorf("without TLS: %s", a)
	}
	i := strings.LastIndexByte(token, '.')
	guess := strings.Replace(token, token[5+12:5+16], "AAAA", 1)
	csr, _, err := pki.NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, pki.ClientConfig(nil, p.Authority().Pool()))
	for name, tc := range map[string]struct {
		body   any
		status int
		param  string
	}{
		"no JSON":        {"hello", 400, ""},
		"a list":         {"[]", 400, ""},
		"two objects":    {"{}{}", 400, ""},
		"unknown member": {`{"token":"x","csr":"y","admin":true}`, 400, "admin"},
		"wrong type":     {`{"token":5}`, 400, "token"},
		"no token":       {JoinRequest{CSR: string(csr)}, 400, "token"},
		"half a token":   {JoinRequest{Token: token[:i], CSR: string(csr)}, 400, "token"},
		"no CSR":         {JoinRequest{Token: token}, 400, "csr"},
		"bad CSR":        {JoinRequest{Token: token, CSR: "x"}, 400, "csr"},
		"wrong secret":   {JoinRequest{Token: guess, CSR: string(csr)}, 401, "token"},
		"huge":           {JoinRequest{Token: token, CSR: strings.Repeat("x", maxBody)}, 413, ""},
	} {
		a := send(t, c, http.MethodPost, p.url+"/edge/v1/join", "", tc.body)
		if _, param := a.problem(); a.status != tc.status || param != tc.param {
			t.Errorf("%s: %s", name, a)
		}
		if strings.Contains(string(a.body), token[20:40]) {
			t.Errorf("%s: the answer repeats the token", name)
		}
	}
	if a := p.join(t, token); a.status != http.StatusOK {
		t.Errorf("the token is still good, yet: %s", a)
	}
}

func TestDeviceSnapshot(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	mine, other := p.newTenant(t, "mine"), p.newTenant(t, "other")
	keyID, key := p.newKey(t, mine)
	_, foreign := p.newKey(t, other)
	eventually(t, "both keys are known", func() bool {
		_, err1 := p.Index().Lookup(key, time.Now())
		_, err2 := p.Index().Lookup(foreign, time.Now())
		return err1 == nil && err2 == nil
	})
	d := p.joinDevice(t, mine)
	if d.TenantID != mine || len(d.SnapshotKey) != ed25519.PublicKeySize {
		t.Fatalf("joined %+v", d.JoinReply)
	}

	trusted := map[string]ed25519.PublicKey{tenants.SignerID(d.SnapshotKey): d.SnapshotKey}
	a := d.call(t, http.MethodGet, "snapshot", nil)
	snap, err := tenants.Verify(a.body, trusted)
	if err != nil {
		t.Fatal(err)
	}
	if len(snap.Tenants) != 1 || len(snap.Keys) != 1 || snap.Keys[0].ID != keyID || len(snap.Prices) == 0 || len(snap.Models) != 2 {
		t.Errorf("snapshot %+v", snap)
	}
	x, err := tenants.NewIndex(snap)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Lookup(key, time.Now()); err != nil {
		t.Errorf("offline check: %v", err)
	}
	if strings.Contains(string(a.body), other) {
		t.Error("another tenant is in the snapshot")
	}

	etag := a.header.Get("ETag")
	for _, tag := range []string{etag, "W/" + etag, `"x", ` + etag, "*"} {
		if got := d.call(t, http.MethodGet, "snapshot", nil, "If-None-Match", tag); got.status != http.StatusNotModified || len(got.body) > 0 {
			t.Errorf("If-None-Match %s: %s", tag, got)
		}
	}
	p.admin(t, http.MethodPost, "keys/"+keyID+"/revoke", nil).into(t, &struct{}{})
	eventually(t, "the device learns of the revocation", func() bool {
		got := d.call(t, http.MethodGet, "snapshot", nil, "If-None-Match", etag)
		if got.status != http.StatusOK {
			return false
		}
		s, err := tenants.Verify(got.body, trusted)
		return err == nil && s.Version > snap.Version && s.Keys[0].State == tenants.Revoked
	})
}

func TestOnlyDevicesMayUseTheirPaths(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	issue := func(peer pki.Peer) *http.Client {
		chain, key, err := p.Authority().IssuePEM(pki.Spec{Peer: peer})
		if err != nil {
			t.Fatal(err)
		}
		h, err := pki.ParseStatic(chain, key)
		if err != nil {
			t.Fatal(err)
		}
		return client(t, pki.ClientConfig(h, p.Authority().Pool()))
	}
	_, key := p.newKey(t, p.newTenant(t, "acme"))
	for _, path := range []struct{ method, path string }{{http.MethodGet, "snapshot"}, {http.MethodPost, "usage"}} {
		for name, tc := range map[string]struct {
			client *http.Client
			base   string
			status int
		}{
			"no TLS":         {http.DefaultClient, p.plain.URL, 401},
			"no certificate": {client(t, pki.ClientConfig(nil, p.Authority().Pool())), p.url, 401},
			"a worker":       {issue(pki.Peer{Role: pki.RoleWorker, Name: "w"}), p.url, 403},
			"unknown tenant": {issue(pki.Peer{Role: pki.RoleEdge, Name: "d", Tenant: uuid.NewString()}), p.url, 403},
		} {
			if a := send(t, tc.client, path.method, tc.base+"/edge/v1/"+path.path, key, nil); a.status != tc.status {
				t.Errorf("%s %s: %s", name, path.path, a)
			}
		}
	}
}

func TestDeviceUsage(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	mine, other := p.newTenant(t, "mine"), p.newTenant(t, "other")
	keyID, _ := p.newKey(t, mine)
	foreign, _ := p.newKey(t, other)
	eventually(t, "the keys are known", func() bool {
		_, err1 := p.Index().LookupID(keyID, time.Now())
		_, err2 := p.Index().LookupID(foreign, time.Now())
		return err1 == nil && err2 == nil
	})
	d := p.joinDevice(t, mine)
	good, cloudTier, stolen, last := edgeRow(), edgeRow(), edgeRow(), edgeRow()
	good.KeyID, cloudTier.Tier, stolen.KeyID = keyID, tenants.Cloud, foreign
	var r tenants.UsageReply
	d.call(t, http.MethodPost, "usage", usageBatch(cloudTier, good, stolen, last)).into(t, &r)
	if r.Accepted != 2 || r.Duplicates != 0 || len(r.Rejected) != 2 {
		t.Fatalf("reply %+v", r)
	}
	if r.Rejected[0].Index != 0 || r.Rejected[0].Field != "tier" || r.Rejected[1].Index != 2 || r.Rejected[1].Field != "key_id" {
		t.Errorf("rejected %+v", r.Rejected)
	}
	r = tenants.UsageReply{}
	d.call(t, http.MethodPost, "usage", usageBatch(good, last)).into(t, &r)
	if r.Accepted != 0 || r.Duplicates != 2 {
		t.Errorf("replay %+v", r)
	}
	// Another device that sends the same attempt id has a row of its own.
	d2 := p.joinDevice(t, mine)
	r = tenants.UsageReply{}
	d2.call(t, http.MethodPost, "usage", usageBatch(good)).into(t, &r)
	if r.Accepted != 1 {
		t.Errorf("another device: %+v", r)
	}
	var got usageAnswer
	p.admin(t, http.MethodGet, "usage?device_id="+d.DeviceID, nil).into(t, &got)
	if got.Totals.Attempts != 2 || got.Rows[0].TenantID != mine || got.Rows[0].DeviceID != d.DeviceID || got.Rows[0].PriceVersion == 0 {
		t.Errorf("ledger %+v", got)
	}

	for name, tc := range map[string]struct {
		body   any
		status int
	}{
		"no JSON":        {"x", 400},
		"unknown member": {`{"rows":[],"tenant_id":"x"}`, 400},
		"too many rows":  {usageBatch(make([]tenants.UsageRow, tenants.MaxUsageRows+1)...), 400},
		"too large":      {strings.Repeat(" ", tenants.MaxUsageBytes+1), 413},
		"no rows":        {`{}`, 200},
	} {
		if a := d.call(t, http.MethodPost, "usage", tc.body); a.status != tc.status {
			t.Errorf("%s: %s", name, a)
		}
	}
}

func TestIfNoneMatch(t *testing.T) {
	for field, want := range map[string]bool{`"a"`: true, `W/"a"`: true, `"b", "a"`: true, `*`: true, `"b"`: false, `a`: false, ``: false} {
		if got := matches([]string{field}, `"a"`); got != want {
			t.Errorf("%q: %v", field, got)
		}
	}
}

func FuzzDecodeBody(f *testing.F) {
	f.Add([]byte(`{"token":"x","csr":"y"}`))
	f.Add([]byte(`{"token":5}`))
	f.Add([]byte(`{"x":1}{`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v JoinRequest
		if err := decodeBytes(b, &v); err != nil {
			if e := asAPIError(err); e.Status != http.StatusBadRequest {
				t.Fatalf("status %d for %q", e.Status, b)
			}
		} else if !json.Valid(b) {
			t.Fatalf("accepted %q", b)
		}
	})
}
