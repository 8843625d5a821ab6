package cloud

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/cloud/control"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/store"
)

// seenPlane is the control plane of "weir cloud"; it notes the routes.
type seenPlane struct {
	*control.Control
	routes gin.RoutesInfo
}

func (p *seenPlane) Register(r gin.IRouter) {
	p.Control.Register(r)
	p.routes = r.(*gin.Engine).Routes()
}

// metered are the routes that reach a model.
var metered = []string{"POST /v1/chat/completions", "POST /v1/completions"}

// open are the routes that need neither key nor token nor certificate: what a
// joining machine shows is in its body.
var open = map[string]bool{"POST /edge/v1/join": true, "POST /instance/v1/join": true, "GET /admin/v1/openapi.json": true}

// TestRoutesOfTheCloud walks every route that "weir cloud" serves (requirement
// 16): without a credential each refuses, unless it is listed as open, and with
// a key whose limits allow nothing none of them reaches a model.
func TestRoutesOfTheCloud(t *testing.T) {
	var reached atomic.Int64
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			reached.Add(1)
		}
		engineFake{}.ServeHTTP(w, r)
	}))
	defer engine.Close()
	url, log := testpg.Start(t), slog.New(slog.DiscardHandler)
	conf := testConfig(engine.URL)
	conf.SecretsDir, conf.DataDir = t.TempDir(), t.TempDir()
	c, err := control.New(control.Options{DatabaseURL: url, SecretsDir: conf.SecretsDir, DataDir: conf.DataDir, Models: conf.catalog(), Pools: conf.Pools, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	tel, err := telemetry.New(t.Context(), telemetry.Options{Role: "cloud", Name: "gw"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tel.Shutdown() }()
	p := &seenPlane{Control: c}
	r, err := newRole(conf, p, c.Authority(), tel, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.run(ctx) }()
	defer sync.OnceFunc(func() { cancel(); <-done })()
	await(t, "the cloud is ready", func() bool { return r.health().Status == "ready" && r.health().Ready == 1 })
	key := lockedKey(t, url)
	base := "http://" + r.servers.socks.plain.Addr().String()
	await(t, "the key is known", func() bool { return knock(t, "GET", base+"/v1/models", key) == http.StatusOK })
	if len(p.routes) < 40 {
		t.Fatalf("%d routes: the walk does not see what is served", len(p.routes))
	}
	params := regexp.MustCompile(`[:*]\w+`)
	for _, rt := range p.routes {
		path := base + params.ReplaceAllString(rt.Path, "x")
		name := rt.Method + " " + rt.Path
		if got := knock(t, rt.Method, path, ""); !open[name] && got != http.StatusUnauthorized && got != http.StatusForbidden {
			t.Errorf("%s answers %d without a credential: authorise it, or list it as open", name, got)
		}
		got := knock(t, rt.Method, path, key)
		if isMetered := strings.Contains(strings.Join(metered, "\n"), name); isMetered != (got == http.StatusTooManyRequests) {
			t.Errorf("%s answers %d to a key that may do nothing: metered routes answer 429, no others do", name, got)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("the engine was reached %d times by a key that may do nothing", n)
	}
}

// lockedKey is a key whose tenant is allowed no request.
func lockedKey(t *testing.T, url string) string {
	t.Helper()
	s, err := store.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tn, err := s.CreateTenant(t.Context(), store.NewTenant{Name: "locked"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateLimit(t.Context(), store.NewLimit{TenantID: tn.ID, Kind: tenants.LimitRequests, Window: tenants.PerMinute}); err != nil {
		t.Fatal(err)
	}
	_, secret, err := s.CreateKey(t.Context(), store.NewKey{TenantID: tn.ID})
	if err != nil {
		t.Fatal(err)
	}
	return secret.Reveal()
}

// knock returns the status of a request with a bearer token, "" for none.
func knock(t *testing.T, method, url, bearer string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body := `{"model":"big","messages":[{"role":"user","content":"x"}]}`
	if strings.HasSuffix(url, "/v1/completions") {
		body = `{"model":"big","prompt":"x"}`
	}
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}
