package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/tenants"
)

func TestMain(m *testing.M) { testproc.VerifyMain(postgres{m}) }

// rig is a gateway over scripted instances.
type rig struct {
	*Gateway
	server *httptest.Server
	key    string // scope explain, every model
	narrow string // key of the same tenant that may use model "big" only
	other  string // key of another tenant
	log    *syncBuffer
	tel    *telemetry.Telemetry

	mu   sync.Mutex
	rows []tenants.UsageRecord
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

type directory func() *tenants.Index

func (d directory) Index() *tenants.Index { return d() }

// Record takes a settled row.
func (r *rig) Record(rec tenants.UsageRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, rec)
}

// ledger returns the rows so far and checks that each would be accepted.
func (r *rig) ledger(t testing.TB) []tenants.UsageRecord {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.rows {
		if err := r.rows[i].Validate(time.Now()); err != nil {
			t.Errorf("ledger row %d is not valid: %v", i, err)
		}
	}
	return append([]tenants.UsageRecord(nil), r.rows...)
}

const (
	tenantA = "11111111-1111-4111-8111-111111111111"
	tenantB = "22222222-2222-4222-8222-222222222222"
)

func mintKey(t testing.TB, tenant string, scopes, models []string) (string, tenants.KeyInfo) {
	t.Helper()
	k, err := tenants.MintKey()
	if err != nil {
		t.Fatal(err)
	}
	return k.Reveal(), tenants.KeyInfo{ID: k.ID, TenantID: tenant, State: tenants.Active, Scopes: scopes, Models: models,
		Hashes: []tenants.SecretHash{{SHA256: tenants.HashSecret(k.Secret)}}}
}

// newRig starts a gateway over the instances and waits until they are ready.
// adjust may change the options.
func newRig(t testing.TB, adjust func(*Options), instances ...*instanceFake) *rig {
	t.Helper()
	r := &rig{log: &syncBuffer{}}
	var infos [3]tenants.KeyInfo
	r.key, infos[0] = mintKey(t, tenantA, []string{"explain"}, nil)
	r.narrow, infos[1] = mintKey(t, tenantA, nil, []string{"big"})
	r.other, infos[2] = mintKey(t, tenantB, nil, nil)
	index, err := tenants.NewIndex(&tenants.Snapshot{Version: 1, ExpiresAt: time.Now().Add(time.Hour),
		Tenants: []tenants.Tenant{{ID: tenantA, Name: "a", State: tenants.Active}, {ID: tenantB, Name: "b", State: tenants.Active}},
		Keys:    infos[:],
		Classes: []tenants.Class{{Name: "gold", Default: true}, {Name: "slow"}},
		Prices:  []tenants.Price{{Version: 3, Tier: tenants.Cloud, Model: "*", Input: 1_000_000, CachedInput: 500_000, Output: 2_000_000}}})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(client.CloseIdleConnections)
	members := make([]pool.Member, len(instances))
	for i, in := range instances {
		members[i] = pool.Member{Name: in.name, URL: in.URL, Role: route.Role(in.role), Model: cmp.Or(in.pool, in.model), Served: in.model}
	}
	p, err := pool.New(pool.Options{Members: members, Client: client, Interval: 20 * time.Millisecond, Timeout: time.Minute, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	background(t, p.Run)
	if r.tel, err = telemetry.New(t.Context(), telemetry.Options{Role: "cloud", Name: "test"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.tel.Shutdown() })
	o := Options{Directory: directory(func() *tenants.Index { return index }), Recorder: AtEnd(r.Record), Pool: p, Client: client, Telemetry: r.tel, Log: log,
		Models: map[string]Model{"big": {Pool: "big", Named: true}, "auto": {Pool: "big"}}, Node: "gw", Epoch: "ep", Timeouts: Timeouts{Votes: time.Minute}}
	if adjust != nil {
		adjust(&o)
	}
	if r.Gateway, err = New(o); err != nil {
		t.Fatal(err)
	}
	r.server = httptest.NewServer(r.Gateway)
	t.Cleanup(func() { r.server.CloseClientConnections(); r.server.Close() })
	await(t, "instances ready", func() bool {
		for _, s := range p.Status() {
			if !s.Ready {
				return false
			}
		}
		return true
	})
	return r
}

// reply is an answer read to its end.
type reply struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

func (r *rig) do(t testing.TB, method, path, key, body string, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(data), err}
}

func (r *rig) chat(t testing.TB, body string, headers ...string) reply {
	t.Helper()
	return r.do(t, http.MethodPost, "/v1/chat/completions", r.key, body, headers...)
}

const (
	ask1   = `{"model":"auto","messages":[{"role":"user","content":"is the light on"}]}`
	ask1s  = `{"model":"auto","messages":[{"role":"user","content":"is the light on"}],"stream":true}`
	ask1su = `{"model":"big","messages":[{"role":"user","content":"is the light on"}],"stream":true,"stream_options":{"include_usage":true}}`
)

// events splits an SSE body into the data of its events.
func events(body string) []string {
	var out []string
	for _, block := range strings.Split(body, "\n\n") {
		if data, ok := strings.CutPrefix(block, "data: "); ok {
			out = append(out, data)
		}
	}
	return out
}

func decode(t testing.TB, data string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		t.Fatalf("not JSON: %v: %q", err, data)
	}
	return m
}

func weirOf(t testing.TB, data string) map[string]any {
	t.Helper()
	w, ok := decode(t, data)["weir"].(map[string]any)
	if !ok {
		t.Fatalf("no weir object in %s", data)
	}
	return w
}

func errorOf(t testing.TB, data string) map[string]any {
	t.Helper()
	e, ok := decode(t, data)["error"].(map[string]any)
	if !ok {
		t.Fatalf("no error in %s", data)
	}
	return e
}

// metric returns the value of one line of the registry's text form.
func (r *rig) metric(t testing.TB, line string) string {
	t.Helper()
	w := httptest.NewRecorder()
	r.tel.MetricsHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for l := range strings.Lines(w.Body.String()) {
		if v, ok := strings.CutPrefix(l, line+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
