package evaluate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/tenants"
)

// A rate is set for the key's tenant, awaited on the edge, and what was there
// before is put back.
func TestHoldRate(t *testing.T) {
	key, err := tenants.MintKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range []string{`[]`, `[{"tenant_id":"t1","class":"","mode":"","threshold":0.5,"spec":null}]`} {
		var mu sync.Mutex
		var calls []string
		policy, polls := "static", 0
		system := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			body, _ := io.ReadAll(r.Body)
			if r.URL.Path == "/v1/chat/completions" {
				if polls++; polls == 2 { // the edge polls now and then
					w.Header().Set("X-Weir-Policy", policy)
				}
				return
			}
			if r.Header.Get("Authorization") != "Bearer wa_secret" {
				t.Errorf("%s without the admin token", r.URL)
			}
			switch r.Method + " " + r.URL.Path {
			case "GET /admin/v1/keys/" + key.ID:
				fmt.Fprint(w, `{"tenant_id":"t1"}`)
			case "GET /admin/v1/policies":
				fmt.Fprintf(w, `{"data":%s}`, before)
			case "PUT /admin/v1/policies":
				var p policyRow
				var s struct{ Name string }
				if json.Unmarshal(body, &p) != nil || p.TenantID != "t1" {
					t.Errorf("put %s", body)
				}
				_ = json.Unmarshal(p.Spec, &s) // null: no name
				policy = s.Name
				calls = append(calls, "put "+string(p.Spec))
			case "DELETE /admin/v1/policies":
				calls = append(calls, "delete")
			default:
				http.NotFound(w, r)
			}
		}))
		ready := client.Ready{EdgeURL: system.URL, CloudURL: system.URL, AppKey: key.Reveal(), AdminToken: "wa_secret"}
		restore, err := holdRate(context.Background(), ready, .2)
		if err != nil {
			t.Fatal(err)
		}
		if err := awaitPolicy(context.Background(), ready); err != nil {
			t.Fatal(err)
		}
		if err := restore(context.Background()); err != nil {
			t.Fatal(err)
		}
		last := "delete"
		if strings.Contains(before, "t1") {
			last = "put null"
		}
		if want := []string{`put {"name":"weir-eval-rate","rate":0.2}`, last}; !slices.Equal(calls, want) {
			t.Errorf("calls %q, want %q", calls, want)
		}
		system.Close()
	}
}
