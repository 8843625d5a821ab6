package control

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/ledger"
	"github.com/weirhq/weir/tenants/store"
)

// marker is in every text of the other tenant, so that any answer with it has
// told too much.
const marker = "forbidden-fruit"

// world is one object of each kind of a tenant.
type world struct {
	tenant string
	ids    []string
	kinds  map[string]string // route of the API -> id
}

func (p *plane) newWorld(t *testing.T, name string) world {
	t.Helper()
	w := world{tenant: p.newTenant(t, name), kinds: map[string]string{}}
	w.kinds["tenants"] = w.tenant
	for route, body := range map[string]map[string]any{
		"keys":         {"name": name, "scopes": []string{"explain"}},
		"admin-tokens": {"name": name, "role": "viewer"},
		"join-tokens":  {"name": name},
		"limits":       {"kind": "requests", "window": "minute", "limit": 5},
	} {
		body["tenant_id"] = w.tenant
		var made struct{ ID string }
		p.admin(t, http.MethodPost, route, body).into(t, &made)
		w.kinds[route] = made.ID
	}
	p.admin(t, http.MethodPut, "policies", map[string]any{"tenant_id": w.tenant, "spec": map[string]string{"name": name}}).into(t, &struct{}{})
	r := tenants.UsageRecord{AttemptID: uuid.Must(uuid.NewV7()).String(), OperationID: uuid.Must(uuid.NewV7()).String(), TenantID: w.tenant,
		KeyID: w.kinds["keys"], Tier: tenants.Cloud, Model: name, Outcome: tenants.OutcomeOK, UsageSource: tenants.UsageUpstream, StartedAt: time.Now().UTC()}
	if _, err := ledger.NewStore(p.store.Pool()).Insert(t.Context(), []tenants.UsageRecord{r}); err != nil {
		t.Fatal(err)
	}
	w.kinds["usage"] = r.OperationID
	for _, id := range w.kinds {
		w.ids = append(w.ids, id)
	}
	slices.Sort(w.ids)
	return w
}

// state is all that the database has of a tenant, but for times of last use.
func (p *plane) state(t *testing.T, tenant string) string {
	t.Helper()
	var b strings.Builder
	for _, table := range []string{"tenants", "api_keys", "admin_tokens", "devices", "join_tokens", "limits", "policies", "usage_ledger", "audit_log"} {
		column := "tenant_id"
		if table == "tenants" {
			column = "id"
		}
		var rows string
		err := p.store.Pool().QueryRow(t.Context(), `select coalesce(jsonb_agg(to_jsonb(x) - 'last_used_at' order by to_jsonb(x)::text), '[]')::text
			from weir.`+table+` x where `+column+`::text = $1`, tenant).Scan(&rows)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(table + rows + "\n")
	}
	return b.String()
}

// TestCrossTenantFuzzFindsNothing calls every route of the admin API as a
// tenant's admin and viewer with another tenant's ids in paths, parameters and
// bodies: nothing of it changes, and no answer shows any of it.
func TestCrossTenantFuzzFindsNothing(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	mine, other := p.newWorld(t, "mine"), p.newWorld(t, marker)
	tokens := []string{p.roleToken(t, store.TenantAdmin, mine.tenant), p.roleToken(t, store.Viewer, mine.tenant)}
	before := p.state(t, other.tenant)
	n := 600
	if os.Getenv("WEIR_SOAK") != "" {
		n = 20_000
	}
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	routes := p.adminRoutes()
	statuses := map[int]int{}
	for i := range n {
		r := routes[i%len(routes)]
		target, body := foreignCall(rng, r, mine, other)
		a := send(t, http.DefaultClient, r.method, p.plain.URL+"/admin/v1"+target, tokens[rng.IntN(2)], body)
		statuses[a.status]++
		sent, _ := json.Marshal(body)
		if a.status >= 500 {
			t.Fatalf("seed %d: %s %s %s: %s", seed, r.method, target, sent, a)
		}
		// The tenant's own id is in its errors; nothing else of the other is known.
		if strings.Contains(string(a.body), marker) && !strings.Contains(target+string(sent), marker) {
			t.Fatalf("seed %d: %s %s %s shows another tenant: %s", seed, r.method, target, sent, a)
		}
		shown := strings.ReplaceAll(string(a.body), `"name":"`+other.tenant+`"`, "") // the caller's own words
		if a.status/100 == 2 && r.access != anyone && strings.Contains(shown, other.tenant) {
			t.Fatalf("seed %d: %s %s %s shows another tenant: %s", seed, r.method, target, sent, a)
		}
	}
	if after := p.state(t, other.tenant); after != before {
		t.Errorf("seed %d: the other tenant has changed from\n%s\nto\n%s", seed, before, after)
	}
	if statuses[200] < n/20 || statuses[403]+statuses[404] < n/20 {
		t.Errorf("statuses %v: the fuzz reaches nothing", statuses)
	}
}

// foreignCall makes a call of a route that names the other tenant's things.
func foreignCall(rng *rand.Rand, r adminRoute, mine, other world) (target string, body any) {
	id := func() string {
		w := other
		if rng.IntN(4) == 0 {
			w = mine
		}
		kind := strings.Split(r.path, "/")[1]
		if own, ok := w.kinds[kind]; ok && rng.IntN(3) > 0 {
			return own
		}
		return w.ids[rng.IntN(len(w.ids))]
	}
	junk := []string{"", "*", "'", "%", "..", "00000000-0000-0000-0000-000000000000", "null", "\x00", "é", strings.Repeat("9", 200), "-1", "a/b"}
	value := func() string {
		if rng.IntN(3) == 0 {
			return junk[rng.IntN(len(junk))]
		}
		return id()
	}
	target = strings.Replace(r.path, ":id", url.PathEscape(value()), 1)
	q := url.Values{}
	for _, param := range r.params {
		if rng.IntN(4) == 0 {
			q.Set(param.Name, value())
		}
	}
	if len(q) > 0 {
		target += "?" + q.Encode()
	}
	if r.method == http.MethodGet || r.method == http.MethodDelete {
		return target, nil
	}
	m := map[string]any{}
	for _, op := range describe([]adminRoute{r}).Paths["/admin/v1"+strings.ReplaceAll(r.path, ":id", "{id}")] {
		if op.RequestBody == nil {
			continue
		}
		for member, schema := range op.RequestBody.Content["application/json"].Schema.Properties {
			switch {
			case member == "tenant_id" || rng.IntN(3) == 0:
				m[member] = value()
			case len(schema.Examples) > 0 && rng.IntN(2) == 0:
				m[member] = schema.Examples[0]
			}
		}
	}
	return target, m
}

// TestTenantsMakeNoPlatformObjects: a tenant's admin cannot lift itself.
func TestTenantsMakeNoPlatformObjects(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	mine := p.newWorld(t, "mine")
	token := p.roleToken(t, store.TenantAdmin, mine.tenant)
	call := func(method, path string, body any) answer {
		return send(t, http.DefaultClient, method, p.plain.URL+"/admin/v1/"+path, token, body)
	}
	for name, a := range map[string]answer{
		"platform token":     call("POST", "admin-tokens", map[string]string{"role": "platform_admin"}),
		"platform's limit":   call("PATCH", "limits/"+mine.kinds["limits"], map[string]int{"limit": 1e6}),
		"limit's removal":    call("DELETE", "limits/"+mine.kinds["limits"], nil),
		"own weight":         call("PATCH", "tenants/"+mine.tenant, map[string]float64{"weight": 9}),
		"price":              call("POST", "prices", map[string]any{"tier": "cloud", "model": "hub-cloud"}),
		"another SLO class":  call("POST", "slo-classes", map[string]any{"name": "gold"}),
		"a first-band class": call("PATCH", "slo-classes/standard", map[string]any{"band": 0}),
	} {
		if a.status != http.StatusForbidden {
			t.Errorf("%s: %s", name, a)
		}
	}
	var own store.Limit
	call("POST", "limits", map[string]any{"kind": "requests", "window": "minute", "limit": 3, "key_id": "*"}).into(t, &own)
	if own.SetBy != store.ByTenant || own.TenantID != mine.tenant {
		t.Errorf("own limit %+v", own)
	}
	call("PATCH", "limits/"+own.ID, map[string]int{"limit": 4}).into(t, &own)
	if d := call("DELETE", "limits/"+own.ID, nil); own.Limit != 4 || d.status != http.StatusOK {
		t.Errorf("own limit %+v, %s", own, d)
	}
	var viewer struct{ Token string }
	call("POST", "admin-tokens", map[string]string{"role": "viewer"}).into(t, &viewer)
	a := send(t, http.DefaultClient, "GET", p.plain.URL+"/admin/v1/tenants", viewer.Token, nil)
	if a.status != 200 || strings.Count(string(a.body), `"id"`) != 1 {
		t.Errorf("a viewer made by a tenant: %s", a)
	}
}
