package control

import (
	"crypto/ed25519"
	"encoding/csv"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/lease"
	"github.com/weirhq/weir/tenants/ledger"
	"github.com/weirhq/weir/tenants/quota"
	"github.com/weirhq/weir/tenants/store"
)

// TestRotationOnAllGateways (requirement 24): the id stays, so limits do; old
// and new secret are good on every gateway until the grace ends; a retry of
// the rotation on another gateway gets the same secret.
func TestRotationOnAllGateways(t *testing.T) {
	o := options(t, testpg.Start(t))
	a := start(t, o)
	a.ready(t)
	o.DataDir = t.TempDir()
	b := start(t, o) // shares the secrets, as gateways do
	b.ready(t)
	id := a.newTenant(t, "acme")
	keyID, old := a.newKey(t, id)
	a.admin(t, "POST", "limits", map[string]any{"tenant_id": id, "key_id": keyID, "kind": "requests", "window": "day", "limit": 5}).into(t, &struct{}{})
	rotate := func(p *plane, key string, grace int) (text string) {
		var made struct{ ID, Key string }
		send(t, http.DefaultClient, "POST", p.plain.URL+"/admin/v1/keys/"+keyID+"/rotate", a.adminToken(t), map[string]int{"grace_seconds": grace},
			"Idempotency-Key", key).into(t, &made)
		if made.ID != keyID {
			t.Errorf("the id became %s", made.ID)
		}
		return made.Key
	}
	fresh := rotate(a, "rotation-1", 3600)
	if again := rotate(b, "rotation-1", 3600); again != fresh {
		t.Error("the retry made another secret")
	}
	bad := send(t, http.DefaultClient, "POST", b.plain.URL+"/admin/v1/keys/"+keyID+"/rotate", a.adminToken(t), map[string]int{"grace_seconds": 1},
		"Idempotency-Key", "rotation-1")
	if bad.status != http.StatusUnprocessableEntity {
		t.Errorf("another request with the same Idempotency-Key: %s", bad)
	}
	for name, p := range map[string]*plane{"a": a, "b": b} {
		eventually(t, "both secrets are good on gateway "+name, func() bool {
			_, err1 := p.Index().Lookup(old, time.Now())
			_, err2 := p.Index().Lookup(fresh, time.Now())
			return err1 == nil && err2 == nil
		})
		if _, err := p.Index().Lookup(old, time.Now().Add(2*time.Hour)); !errors.Is(err, tenants.ErrKeyExpired) {
			t.Errorf("gateway %s after the grace: %v", name, err)
		}
		limits := p.Index().Snapshot().Limits
		if len(limits) != 1 || limits[0].KeyID != keyID {
			t.Errorf("gateway %s: limits %+v", name, limits)
		}
	}
	if next := rotate(b, "rotation-2", 0); next == fresh {
		t.Error("a second rotation gave the first one's secret")
	}
	for name, p := range map[string]*plane{"a": a, "b": b} {
		eventually(t, "without grace the old secret ends on gateway "+name, func() bool {
			_, err := p.Index().Lookup(fresh, time.Now())
			return errors.Is(err, tenants.ErrKeyExpired)
		})
	}
}

// TestAdminTokenRotation: a token that rotates itself works on with the old
// secret while the grace lasts, its retry gets the same new one, and it cannot
// lock itself out.
func TestAdminTokenRotation(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	old := p.roleToken(t, store.TenantAdmin, p.newTenant(t, "acme"))
	parsed, err := tenants.ParseAdminToken(old)
	if err != nil {
		t.Fatal(err)
	}
	url := p.plain.URL + "/admin/v1/admin-tokens/" + parsed.ID
	rotate := func(token, key string, grace int) (answer answer, text string) {
		a := send(t, http.DefaultClient, "POST", url+"/rotate", token, map[string]int{"grace_seconds": grace}, "Idempotency-Key", key)
		if a.status != http.StatusOK {
			return a, ""
		}
		var made struct{ ID, Token string }
		if a.into(t, &made); made.ID != parsed.ID {
			t.Errorf("the id became %s", made.ID)
		}
		return a, made.Token
	}
	if a, _ := rotate(old, "locks-out", 0); a.status != http.StatusBadRequest {
		t.Errorf("a token ended itself: %s", a)
	}
	_, fresh := rotate(old, "once", 3600)
	if _, again := rotate(old, "once", 3600); again != fresh || fresh == old {
		t.Errorf("the retry made another secret")
	}
	works := func(token string) bool {
		return send(t, http.DefaultClient, "GET", url, token, nil).status == http.StatusOK
	}
	if !works(old) || !works(fresh) {
		t.Error("a secret does not work in the grace")
	}
	if a := send(t, http.DefaultClient, "POST", url+"/rotate", p.adminToken(t), map[string]int{"grace_seconds": 0}); a.status != http.StatusOK {
		t.Errorf("rotated by the platform: %s", a)
	}
	if works(old) || works(fresh) {
		t.Error("an old secret works without grace")
	}
}

// TestLimitDimensions (requirement 34): scope, model, tier, class and kind of
// a limit reach the gateways' admission as they were set.
func TestLimitDimensions(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	id := p.newTenant(t, "acme")
	kinds := []tenants.LimitKind{tenants.LimitRequests, tenants.LimitInput, tenants.LimitOutput, tenants.LimitTotal, tenants.LimitEscalations}
	for _, k := range kinds {
		p.admin(t, "POST", "limits", map[string]any{"tenant_id": id, "key_id": "*", "model": "hub-cloud", "tier": "cloud", "class": "batch",
			"kind": k, "window": "minute", "limit": 7, "burst": 9, "shadow": true}).into(t, &struct{}{})
	}
	p.admin(t, "POST", "limits", map[string]any{"tenant_id": id, "kind": "cost_nanousd", "window": "month", "limit": 7}).into(t, &struct{}{})
	p.admin(t, "POST", "limits", map[string]any{"tenant_id": id, "kind": "concurrent", "window": "at_once", "limit": 7}).into(t, &struct{}{})
	eventually(t, "the limits are in the snapshot", func() bool { return len(p.Index().Snapshot().Limits) == len(kinds)+2 })
	all, err := quota.FromSnapshot(p.Index().Snapshot(), true)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[quota.Kind]bool{}
	for _, l := range all[id].Limits {
		seen[l.Kind] = true
		if l.Window == quota.Minute && (l.Key != "*" || l.Model != "hub-cloud" || l.Tier != "cloud" || l.Class != "batch" || l.Max != 7 || l.Burst != 9 || !l.Shadow) {
			t.Errorf("limit %+v", l)
		}
	}
	if len(seen) != len(kinds)+2 {
		t.Errorf("kinds %v", seen)
	}
	for _, tc := range []struct {
		body  map[string]any
		param string
	}{
		{map[string]any{"kind": "requests", "window": "at_once", "limit": 1}, "window"},
		{map[string]any{"kind": "concurrent", "window": "minute", "limit": 1}, "window"},
		{map[string]any{"kind": "cost_nanousd", "window": "minute", "limit": 1}, "window"},
		{map[string]any{"kind": "money", "window": "day", "limit": 1}, "kind"},
		{map[string]any{"kind": "requests", "window": "day", "limit": -1}, "limit"},
		{map[string]any{"kind": "requests", "window": "day", "limit": 1, "burst": 2}, "burst"},
		{map[string]any{"kind": "requests", "window": "day", "limit": 1, "key_id": "nosuch"}, "key_id"},
		{map[string]any{"kind": "requests", "window": "day", "limit": 1, "class": "nosuch"}, "class"},
		{map[string]any{"kind": "requests", "window": "day", "limit": 1, "tier": "fog"}, "tier"},
		{map[string]any{"kind": "requests", "window": "minute", "limit": int64(1e15)}, "limit"},
	} {
		tc.body["tenant_id"] = id
		a := p.admin(t, "POST", "limits", tc.body)
		if _, param := a.problem(); a.status != 400 || param != tc.param {
			t.Errorf("%v: want a complaint about %s: %s", tc.body, tc.param, a)
		}
	}
}

// TestDevicesGetTheirTenantsRules: a device's signed snapshot has its tenant's
// limits and policies and all classes and prices, and nothing of others.
func TestDevicesGetTheirTenantsRules(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	mine, other := p.newWorld(t, "mine"), p.newWorld(t, marker)
	d := p.joinDevice(t, mine.tenant)
	p.admin(t, "POST", "slo-classes", map[string]any{"name": "gold", "band": 0, "ttft_ms": 200}).into(t, &struct{}{})
	var snap *tenants.Snapshot
	eventually(t, "the device's snapshot has the new class", func() bool {
		a := d.call(t, "GET", "snapshot", nil)
		var err error
		snap, err = tenants.Verify(a.body, d.trusted())
		return err == nil && len(snap.Limits) > 0 && strings.Contains(string(mustJSON(t, snap.Classes)), "gold")
	})
	text := string(mustJSON(t, snap))
	if len(snap.Limits) != 1 || snap.Limits[0].ID != mine.kinds["limits"] || len(snap.Policies) != 1 || len(snap.Keys) != 1 || len(snap.Prices) < 2 {
		t.Errorf("snapshot %s", text)
	}
	if strings.Contains(text, other.tenant) || strings.Contains(text, marker) {
		t.Error("the snapshot tells of another tenant")
	}
}

// TestEveryChangeIsAudited: who, what, before and after, without any secret.
func TestEveryChangeIsAudited(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	id := p.newTenant(t, "acme")
	keyID, text := p.newKey(t, id)
	var tok struct{ ID, Token string }
	p.admin(t, "POST", "admin-tokens", map[string]string{"role": "viewer", "tenant_id": id}).into(t, &tok)
	p.admin(t, "PATCH", "keys/"+keyID, map[string]any{"name": "renamed", "expires_at": "2099-01-01T00:00:00Z"}).into(t, &struct{}{})
	var k store.Key
	p.admin(t, "PATCH", "keys/"+keyID, map[string]any{"expires_at": nil}).into(t, &k)
	if k.ExpiresAt != nil || k.Name != "renamed" {
		t.Errorf("key %+v", k)
	}
	p.admin(t, "PATCH", "tenants/"+id, map[string]any{"state": "suspended"}).into(t, &struct{}{})
	p.admin(t, "PUT", "policies", map[string]any{"tenant_id": id, "class": "batch", "mode": "prefer-edge"}).into(t, &struct{}{})
	p.admin(t, "DELETE", "policies?class=batch&tenant_id="+id, nil).into(t, &struct{}{})
	p.admin(t, "POST", "admin-tokens/"+tok.ID+"/revoke", nil).into(t, &struct{}{})
	refused := p.admin(t, "POST", "keys", map[string]any{"tenant_id": id, "scopes": []string{""}})
	if refused.status != 400 {
		t.Fatal(refused)
	}
	a := p.admin(t, "GET", "audit?limit=1000", nil)
	var log struct{ Data []store.AuditEntry }
	a.into(t, &log)
	var actions []string
	for _, e := range log.Data {
		actions = append(actions, e.Action)
		if e.Action == "tenant.update" && (!strings.Contains(string(e.Before), `"active"`) || !strings.Contains(string(e.After), `"suspended"`)) {
			t.Errorf("before %s, after %s", e.Before, e.After)
		}
	}
	want := "admin_token.revoke policy.delete policy.put tenant.update key.update key.update admin_token.create key.create tenant.create admin_token.create"
	if got := strings.Join(actions, " "); got != want {
		t.Errorf("actions %s\nwant    %s", got, want)
	}
	for _, secret := range []string{text[len(text)-20:], tok.Token[len(tok.Token)-20:], "sha256"} {
		if strings.Contains(string(a.body), secret) {
			t.Error("the log shows a secret")
		}
	}
	var page struct{ Data []store.AuditEntry }
	p.admin(t, "GET", "audit?action=key.update&tenant_id="+id+"&object_id="+keyID, nil).into(t, &page)
	if len(page.Data) != 2 {
		t.Errorf("%d updates of the key", len(page.Data))
	}
}

// TestUsageOfATenant: sums, limits with what remains, pages and CSV, by the
// admin API and by the tenant's own key.
func TestUsageOfATenant(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	id := p.newTenant(t, "acme")
	keyID, _ := p.newKey(t, id)
	p.admin(t, "POST", "limits", map[string]any{"tenant_id": id, "kind": "cost_nanousd", "window": "month", "limit": 5_000}).into(t, &struct{}{})
	p.admin(t, "POST", "limits", map[string]any{"tenant_id": id, "kind": "requests", "window": "minute", "limit": 60}).into(t, &struct{}{})
	p.admin(t, "POST", "slo-classes", map[string]any{"name": "spare", "band": 3, "escalations_per_minute": 7}).into(t, &struct{}{})
	eventually(t, "limits and classes are in the snapshot", func() bool {
		s := p.Index().Snapshot()
		return len(s.Limits) == 2 && slices.ContainsFunc(s.Classes, func(c tenants.Class) bool { return c.Name == "spare" })
	})
	rate := p.Index().Snapshot().Limits[1].ID
	for _, n := range []int64{5, 7} { // of two gateways
		if err := lease.NewStore(p.store.Pool()).CountShadow(t.Context(), map[string]int64{rate: n, "gone": 1}); err != nil {
			t.Fatal(err)
		}
	}
	var shown struct {
		Refused int64 `json:"would_have_refused"`
	}
	if p.admin(t, "GET", "limits/"+rate, nil).into(t, &shown); shown.Refused != 12 {
		t.Errorf("the admin API tells %d refusals: want 12", shown.Refused)
	}
	now := time.Now().UTC()
	var recs []tenants.UsageRecord
	for range 2500 {
		recs = append(recs, tenants.UsageRecord{AttemptID: uuid.Must(uuid.NewV7()).String(), OperationID: uuid.Must(uuid.NewV7()).String(), TenantID: id,
			KeyID: keyID, Tier: tenants.Cloud, Model: "hub-cloud", Outcome: tenants.OutcomeOK, UsageSource: tenants.UsageUpstream, InputTokens: 2,
			OutputTokens: 1, CostNanoUSD: 1, StartedAt: now})
	}
	if _, err := ledger.NewStore(p.store.Pool()).Insert(t.Context(), recs); err != nil {
		t.Fatal(err)
	}
	q := gateway.UsageQuery{TenantID: id, Caller: keyID, From: now.Add(-time.Hour), To: now.Add(time.Hour), Limit: 10,
		Live: func(_, class string) []quota.Status {
			return []quota.Status{{Limit: quota.Limit{ID: "class/spare/escalations", Class: class, Window: quota.Minute}, Remaining: 6, Reset: time.Second}, {Limit: quota.Limit{ID: p.Index().Snapshot().Limits[1].ID, Window: quota.Minute}, Remaining: 41, Reset: time.Second}}
		}}
	got, err := p.Usage(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	u, _ := got.(ownUsage)
	if u.Totals.Requests != 2500 || u.Totals.CostNanoUSD != 2500 || len(u.Rows) != 10 || u.Next == "" || u.CostUSD != 2500e-9 || len(u.Limits) != 3 {
		t.Fatalf("usage %+v", u)
	}
	if m := u.Limits[0]; *m.Used != 2500 || *m.Remaining != 2500 || m.ResetAt == nil {
		t.Errorf("month %+v", m)
	}
	if u.Limits[0].WouldHaveRefused != 0 || u.Limits[1].WouldHaveRefused != 12 {
		t.Errorf("shadow refusals %+v", u.Limits)
	}
	if r := u.Limits[1]; r.Used != nil || r.Remaining == nil || *r.Remaining != 41 {
		t.Errorf("rate %+v", r)
	}
	if a := u.Limits[2]; a.Class != "spare" || a.Kind != tenants.LimitEscalations || a.Limit != 7 || a.Remaining == nil || *a.Remaining != 6 {
		t.Errorf("allowance %+v", a)
	}
	a := p.admin(t, "GET", "usage.csv?tenant_id="+id, nil)
	lines, err := csv.NewReader(strings.NewReader(string(a.body))).ReadAll()
	if err != nil || len(lines) != 2501 || a.header.Get("Content-Type") != "text/csv; charset=utf-8" {
		t.Errorf("%d lines, %v, %v", len(lines), err, a.header)
	}
	var sums usageAnswer
	p.admin(t, "GET", "usage?group_by=key_id,outcome&bucket=hour&tz=Europe/Paris&limit=0", nil).into(t, &sums)
	if len(sums.Groups) != 1 || sums.Groups[0].KeyID != keyID || sums.Groups[0].At == nil || sums.Totals.Attempts != 2500 || len(sums.Rows) != 0 {
		t.Errorf("sums %+v", sums)
	}
	for query, param := range map[string]string{"group_by=secret": "group_by", "bucket=week": "bucket", "tz=Mars/Base": "tz", "tz=Local": "tz", "limit=-1": "limit", "after=!": "after"} {
		a := p.admin(t, "GET", "usage?"+query, nil)
		if _, got := a.problem(); a.status != 400 || got != param {
			t.Errorf("?%s: %s", query, a)
		}
	}
}

func (d *device) trusted() map[string]ed25519.PublicKey {
	return map[string]ed25519.PublicKey{tenants.SignerID(d.SnapshotKey): d.SnapshotKey}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
