package control

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants/store"
)

// roleToken makes an admin token of a role.
func (p *plane) roleToken(t *testing.T, role store.AdminRole, tenantID string) string {
	t.Helper()
	_, tok, err := p.store.CreateAdminToken(t.Context(), store.NewAdminToken{Role: role, TenantID: tenantID})
	if err != nil {
		t.Fatal(err)
	}
	return tok.Reveal()
}

func TestRoleMatrix(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	mine, other := p.newTenant(t, "mine"), p.newTenant(t, "other")
	tokens := map[string]string{
		"platform":    p.roleToken(t, store.PlatformAdmin, ""),
		"tenant":      p.roleToken(t, store.TenantAdmin, mine),
		"viewer":      p.roleToken(t, store.Viewer, mine),
		"any viewer":  p.roleToken(t, store.Viewer, ""),
		"nobody":      "",
		"app's key":   "wk_abcdefgh_" + strings.Repeat("a", 43),
		"wrong token": "wa_abcdefgh_" + strings.Repeat("a", 43),
	}
	may := map[access][]string{
		anyone:   {"platform", "tenant", "viewer", "any viewer", "nobody", "app's key", "wrong token"},
		read:     {"platform", "tenant", "viewer", "any viewer"},
		manage:   {"platform", "tenant"},
		platform: {"platform"},
	}
	n := 0
	for _, r := range p.adminRoutes() {
		for who, token := range tokens {
			n++
			body := any(nil)
			if r.method != http.MethodGet {
				body = map[string]any{}
			}
			path := strings.Replace(r.path, ":id", "nosuchid", 1)
			a := send(t, http.DefaultClient, r.method, p.plain.URL+"/admin/v1"+path, token, body)
			want := false
			for _, m := range may[r.access] {
				want = want || m == who
			}
			authenticated := r.access == anyone || strings.HasPrefix(token, "wa_") && who != "wrong token"
			refused := a.status == http.StatusForbidden || a.status == http.StatusUnauthorized
			if refused == want || (!authenticated) != (a.status == http.StatusUnauthorized) || a.status >= 500 {
				t.Errorf("%s %s as %s: %.300s", r.method, r.path, who, a)
			}
		}
	}

	// Tokens of one tenant see and change nothing of another.
	foreignKey, _ := p.newKey(t, other)
	for _, tc := range []struct {
		method, path string
		body         any
	}{
		{http.MethodGet, "keys?tenant_id=" + other, nil}, {http.MethodGet, "devices?tenant_id=" + other, nil},
		{http.MethodGet, "usage?tenant_id=" + other, nil}, {http.MethodGet, "join-tokens?tenant_id=" + other, nil},
		{http.MethodGet, "tenants?tenant_id=" + other, nil},
		{http.MethodPost, "keys", map[string]string{"tenant_id": other}}, {http.MethodPost, "join-tokens", map[string]string{"tenant_id": other}},
		{http.MethodPost, "keys/" + foreignKey + "/revoke", map[string]string{}}, {http.MethodPost, "keys/" + foreignKey + "/rotate", map[string]int{"grace_seconds": 1}},
	} {
		a := send(t, http.DefaultClient, tc.method, p.plain.URL+"/admin/v1/"+tc.path, tokens["tenant"], tc.body)
		if a.status != http.StatusForbidden && a.status != http.StatusNotFound {
			t.Errorf("%s %s reaches another tenant: %s", tc.method, tc.path, a)
		}
	}
	for _, path := range []string{"keys", "tenants"} {
		a := send(t, http.DefaultClient, http.MethodGet, p.plain.URL+"/admin/v1/"+path, tokens["viewer"], nil)
		if a.status != http.StatusOK || strings.Contains(string(a.body), other) {
			t.Errorf("%s as viewer: %s", path, a)
		}
	}
}

func TestAdminBadInput(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	id := p.newTenant(t, "acme")
	key, _ := p.newKey(t, id)
	for _, tc := range []struct {
		method, path string
		body         any
		status       int
		param        string
	}{
		{"POST", "tenants", `{"name":"x","budget":5}`, 400, "budget"},
		{"POST", "tenants", `{"name":7}`, 400, "name"},
		{"POST", "tenants", `{"name":""}`, 400, "name"},
		{"POST", "tenants", `{"name":"a\nb"}`, 400, "name"},
		{"POST", "tenants", `{"name":"x","weight":-1}`, 400, "weight"},
		{"POST", "tenants", `{"name":"x","weight":"heavy"}`, 400, "weight"},
		{"POST", "tenants", `{"name":"x"} trailing`, 400, ""},
		{"POST", "tenants", `{"name":"acme"}`, 409, ""},
		{"POST", "tenants", ``, 400, ""},
		{"POST", "tenants", `null`, 400, ""},
		{"POST", "tenants", `{"name":"` + strings.Repeat("x", maxBody) + `"}`, 413, ""},
		{"PATCH", "tenants/" + id, `{"state":"gone"}`, 400, "state"},
		{"PATCH", "tenants/nonsense", `{"state":"active"}`, 404, ""},
		{"POST", "keys", `{}`, 400, "tenant_id"},
		{"POST", "keys", `{"tenant_id":"x"}`, 400, "tenant_id"},
		{"POST", "keys", `{"tenant_id":"0190c9a4-7f7e-7000-8000-00000000000a"}`, 404, ""},
		{"POST", "keys", `{"tenant_id":"` + id + `","expires_at":"tomorrow"}`, 400, "expires_at"},
		{"POST", "keys", `{"tenant_id":"` + id + `","expires_at":"2020-01-01T00:00:00Z"}`, 400, "expires_at"},
		{"POST", "keys", `{"tenant_id":"` + id + `","models":"auto"}`, 400, "models"},
		{"POST", "keys", `{"tenant_id":"` + id + `","scopes":[""]}`, 400, "scopes"},
		{"POST", "keys", `{"tenant_id":"` + id + `","scopes":["explain","admin"]}`, 400, "scopes"},
		{"POST", "keys", `{"tenant_id":"` + id + `","classes":["batch","nope"]}`, 400, "classes"},
		{"POST", "keys", `{"tenant_id":"` + id + `","models":["auto","nope"]}`, 400, "models"},
		{"POST", "keys", `{"tenant_id":"` + id + `","models":["auto","hub-cloud","hub-edge"]}`, 201, ""},
		{"POST", "keys", `{"tenant_id":"` + id + `","name":"a","name":"b"}`, 400, "name"},
		{"PUT", "policies", `{"tenant_id":"` + id + `","spec":{"mode":"auto","mode":"auto"}}`, 400, "spec.mode"},
		{"PUT", "policies", `{"tenant_id":"` + id + `","spec":{"name":"x","Rate":0.2}}`, 400, "spec"},
		{"PUT", "policies", `{"tenant_id":"` + id + `","spec":{"privacy":"local-only","mode":"cloud-only","Privacy":"any"}}`, 400, "spec"},
		{"PUT", "policies", `{"tenant_id":"` + id + `","Spec":{"rate":0.2}}`, 400, "Spec"},
		{"POST", "tenants", "{\"name\":\"\xff\"}", 400, ""},
		{"POST", "limits", `{"tenant_id":"` + id + `","kind":"requests","window":"minute","limit":1,"model":"nope"}`, 400, "model"},
		{"POST", "limits", `{"tenant_id":"` + id + `","kind":"requests","window":"minute","limit":1,"model":"auto"}`, 400, "model"},
		{"POST", "limits", `{"tenant_id":"` + id + `","kind":"output_tokens","window":"minute","limit":1,"tier":"edge"}`, 400, "tier"},
		{"POST", "limits", `{"tenant_id":"` + id + `","kind":"requests","window":"day","limit":1,"tier":"edge"}`, 400, "tier"},
		{"POST", "limits", `{"tenant_id":"` + id + `","kind":"requests","window":"minute","limit":1,"tier":"edge"}`, 201, ""},
		{"GET", "tenants?after=garbage", nil, 400, "after"},
		{"GET", "keys?after=garbage", nil, 400, "after"},
		{"GET", "admin-tokens?after=garbage", nil, 400, "after"},
		{"GET", "join-tokens?after=garbage", nil, 400, "after"},
		{"GET", "devices?after=garbage", nil, 400, "after"},
		{"GET", "limits?after=garbage", nil, 400, "after"},
		{"GET", "policies?after=garbage", nil, 400, "after"},
		{"GET", "prices?after=garbage", nil, 400, "after"},
		{"GET", "audit?after=garbage", nil, 400, "after"},
		{"POST", "keys/" + key + "/rotate", `{"grace_seconds":-1}`, 400, "grace_seconds"},
		{"POST", "keys/" + key + "/rotate", `{"grace_seconds":99999999999999999999}`, 400, "grace_seconds"},
		{"POST", "keys/%00/rotate", `{}`, 404, ""},
		{"POST", "admin-tokens/unknown/rotate", `{}`, 404, ""},
		{"POST", "admin-tokens/unknown/rotate", `{"grace_seconds":-1}`, 400, "grace_seconds"},
		{"POST", "keys/unknown/revoke", nil, 404, ""},
		{"POST", "join-tokens", `{"tenant_id":"` + id + `","ttl_seconds":0}`, 400, "ttl_seconds"},
		{"POST", "join-tokens", `{"tenant_id":"` + id + `","ttl_seconds":9223372036854775807}`, 400, "ttl_seconds"},
		{"GET", "keys?limit=0", nil, 400, "limit"},
		{"GET", "keys?limit=x", nil, 400, "limit"},
		{"GET", "keys?tenant=x", nil, 400, "tenant"},
		{"GET", "keys?tenant_id=x", nil, 400, "tenant_id"},
		{"GET", "keys?limit=1&limit=2", nil, 400, "limit"},
		{"GET", "keys?%zz", nil, 400, ""},
		{"GET", "usage?from=yesterday", nil, 400, "from"},
		{"GET", "usage?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", nil, 400, "from"},
		{"GET", "usage?after=!", nil, 400, "after"},
		{"GET", "usage?operation_id=1", nil, 400, "operation_id"},
		{"GET", "models?x=1", nil, 400, "x"},
	} {
		a := p.admin(t, tc.method, tc.path, tc.body)
		if _, param := a.problem(); a.status != tc.status || param != tc.param {
			t.Errorf("%s %s %.60v: want %d %q, got %.300s", tc.method, tc.path, tc.body, tc.status, tc.param, a)
		}
	}
	text := send(t, http.DefaultClient, "POST", p.plain.URL+"/admin/v1/tenants", p.adminToken(t), `{"name":"x"}`, "Content-Type", "text/plain")
	if text.status != http.StatusUnsupportedMediaType {
		t.Errorf("text/plain: %s", text)
	}
}

// What is created reads back with every member that was given.
func TestCreateThenRead(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	var made store.Tenant
	p.admin(t, "POST", "tenants", map[string]any{"name": "acme", "weight": 2.5, "strict": true}).into(t, &made)
	var ts struct{ Data []store.Tenant }
	p.admin(t, "GET", "tenants?limit=1", nil).into(t, &ts)
	if len(ts.Data) != 1 || ts.Data[0] != made || made.Weight != 2.5 || !made.Strict {
		t.Errorf("made %+v, read %+v", made, ts.Data)
	}
	a := p.admin(t, "POST", "keys", map[string]any{"tenant_id": made.ID, "name": "ci", "scopes": []string{"explain"},
		"models": []string{"auto"}, "classes": []string{"batch"}, "expires_at": expires})
	if a.status != http.StatusCreated || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("got %s", a)
	}
	var key struct {
		store.Key
		Text string `json:"key"`
	}
	a.into(t, &key)
	list := p.admin(t, "GET", "keys?tenant_id="+made.ID, nil)
	var ks struct{ Data []store.Key }
	list.into(t, &ks)
	if len(ks.Data) != 1 || fmt.Sprint(ks.Data[0].Scopes, ks.Data[0].Models, ks.Data[0].Classes) != "[explain] [auto] [batch]" ||
		!ks.Data[0].ExpiresAt.Equal(expires) || ks.Data[0].Name != "ci" {
		t.Errorf("read %+v", ks.Data)
	}
	if strings.Contains(string(list.body), key.Text) || strings.Contains(string(list.body), "wk_") {
		t.Error("the list shows the key")
	}
	var rotated struct {
		ID  string
		Key string
	}
	p.admin(t, "POST", "keys/"+key.ID+"/rotate", map[string]int{"grace_seconds": 60}).into(t, &rotated)
	if rotated.ID != key.ID || rotated.Key == key.Text {
		t.Errorf("rotated %+v", rotated)
	}
	eventually(t, "both secrets are good", func() bool {
		_, err1 := p.Index().Lookup(key.Text, time.Now())
		_, err2 := p.Index().Lookup(rotated.Key, time.Now())
		return err1 == nil && err2 == nil
	})
	token := p.newJoinToken(t, made.ID)
	if jt := p.admin(t, "GET", "join-tokens", nil); strings.Contains(string(jt.body), token[18:40]) || !strings.Contains(string(jt.body), "kitchen") {
		t.Errorf("join tokens: %s", jt)
	}
	var empty usageAnswer
	u := p.admin(t, "GET", "usage", nil)
	u.into(t, &empty)
	if empty.Rows == nil || empty.Groups == nil || empty.Totals.Attempts != 0 {
		t.Errorf("usage %s", u)
	}
	if m := p.admin(t, "GET", "models", nil); !strings.Contains(string(m.body), "hub-cloud") {
		t.Errorf("models: %s", m)
	}
}
