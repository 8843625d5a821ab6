package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/control/openapi"
	"github.com/weirhq/weir/internal/testpg"
)

// committed is the description as users find it in the repository.
var committed = filepath.Join("..", "..", "docs", "openapi.json")

func TestCommittedDescriptionIsTheCodes(t *testing.T) {
	want, err := Spec()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("WEIR_UPDATE") != "" {
		if err := os.WriteFile(committed, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(committed)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("docs/openapi.json is not what the code says: run WEIR_UPDATE=1 go test ./cloud/control -run TestCommitted")
	}
}

func TestDescriptionIsServedAndComplete(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	a := send(t, http.DefaultClient, http.MethodGet, p.plain.URL+"/admin/v1/openapi.json", "", nil)
	var d struct {
		OpenAPI string
		Paths   map[string]map[string]struct{ OperationID string }
	}
	a.into(t, &d)
	if d.OpenAPI != "3.1.0" {
		t.Errorf("openapi %q", d.OpenAPI)
	}
	ids := map[string]bool{}
	for _, r := range p.adminRoutes() {
		path := "/admin/v1" + strings.ReplaceAll(r.path, ":id", "{id}")
		op := d.Paths[path][strings.ToLower(r.method)]
		if op.OperationID != r.id || ids[r.id] {
			t.Errorf("%s %s: described as %q", r.method, path, op.OperationID)
		}
		ids[r.id] = true
	}
}

// maker gives values to members of request bodies by their schema.
type maker struct {
	t      *testing.T
	tenant string
	n      int
}

// value returns an example that no value before was.
func (m *maker) value(name string, s *openapi.Schema) any {
	m.t.Helper()
	m.n++
	switch {
	case name == "tenant_id":
		return m.tenant
	case len(s.Examples) == 0:
		m.t.Fatalf("member %s has no example", name)
	case s.Format == "date-time":
		return time.Now().Add(time.Duration(m.n) * time.Hour).UTC().Truncate(time.Second).Format(time.RFC3339)
	case name == "name":
		return fmt.Sprint(s.Examples[0], "-", m.n)
	}
	return s.Examples[0]
}

// TestEveryFieldRoundTrips (requirement 17): each member that a create takes
// is in force afterwards, by the schema that is served; unknown ones are 400.
func TestEveryFieldRoundTrips(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	m := &maker{t: t, tenant: p.newTenant(t, "round")}
	var doc openapi.Document
	b, err := Spec()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	creates, fields := 0, 0
	for path, ops := range doc.Paths {
		op, ok := ops["post"]
		if !ok || strings.Contains(path, "{") {
			continue
		}
		creates++
		s := op.RequestBody.Content["application/json"].Schema
		route := strings.TrimPrefix(path, "/admin/v1/")
		base := func() map[string]any {
			body := map[string]any{}
			for name, member := range s.Properties {
				if name == "tenant_id" || slices.Contains(s.Required, name) {
					body[name] = m.value(name, member)
				}
			}
			return body
		}
		for name, member := range s.Properties {
			fields++
			body := base()
			body[name] = m.value(name, member)
			m.roundTrip(p, route, name, body)
		}
		body := base()
		body["budget"] = 5
		if a := p.admin(t, http.MethodPost, route, body); a.status != http.StatusBadRequest {
			t.Errorf("%s with an unknown member: %s", route, a)
		}
	}
	if creates < 7 || fields < 40 {
		t.Errorf("%d creates with %d members: the schema has lost some", creates, fields)
	}
}

func (m *maker) roundTrip(p *plane, route, name string, body map[string]any) {
	m.t.Helper()
	var made, got map[string]any
	p.admin(m.t, http.MethodPost, route, body).into(m.t, &made)
	id := fmt.Sprint(made["id"])
	switch {
	case made["version"] != nil:
		id = fmt.Sprint(made["version"])
	case made["id"] == nil:
		id = fmt.Sprint(made["name"])
	}
	p.admin(m.t, http.MethodGet, route+"/"+id, nil).into(m.t, &got)
	want, shown := body[name], got[name]
	if name == "ttl_seconds" { // shown as the time that it means
		at := func(v any) time.Time { x, _ := time.Parse(time.RFC3339Nano, fmt.Sprint(v)); return x }
		shown = at(got["expires_at"]).Sub(at(got["created_at"])).Seconds()
	}
	var w any
	b, _ := json.Marshal(want)
	_ = json.Unmarshal(b, &w)
	if !reflect.DeepEqual(w, shown) {
		m.t.Errorf("%s: %s = %v was created, read %v", route, name, w, shown)
	}
}
