package cloud

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/tenants"
)

// TestMain lets this binary stand for the weir binary, as a worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		env := cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
		os.Exit(cli.Main(context.Background(), env, []cli.Command{worker.Command()}, os.Args[1:]))
	}
	testproc.VerifyMain(leakTest{m})
}

// leakTest looks for leaks after testpg has taken its cluster down.
type leakTest struct{ m *testing.M }

func (l leakTest) Run() int { return testpg.Run(l.m) }

const tenant = "11111111-1111-4111-8111-111111111111"

// fakePlane is a control plane in memory.
type fakePlane struct {
	index atomic.Pointer[tenants.Index]
	down  atomic.Bool
	mu    sync.Mutex
	rows  []tenants.UsageRecord
}

func (p *fakePlane) Index() *tenants.Index { return p.index.Load() }
func (p *fakePlane) DatabaseUp() bool      { return !p.down.Load() }
func (p *fakePlane) Record(r tenants.UsageRecord) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rows = append(p.rows, r)
}
func (p *fakePlane) Usage(context.Context, gateway.UsageQuery) (any, error) { return gin.H{}, nil }
func (p *fakePlane) Claim(context.Context, gateway.Claim) (gateway.Claimed, error) {
	return gateway.Claimed{Mine: true, SameBody: true}, nil
}
func (p *fakePlane) DropClaim(context.Context, gateway.Claim) error { return nil }
func (p *fakePlane) Answered(gateway.Answer)                        {}
func (p *fakePlane) Score(context.Context, gateway.Score) error     { return gateway.ErrUnknownAnswer }
func (p *fakePlane) Arms(context.Context) (map[string]cascading.Arms, error) {
	return nil, nil
}
func (p *fakePlane) Register(r gin.IRouter) {
	r.GET("/edge/v1/snapshot", func(c *gin.Context) { c.String(http.StatusOK, c.Request.Proto) })
}
func (p *fakePlane) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (p *fakePlane) ledger() []tenants.UsageRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]tenants.UsageRecord(nil), p.rows...)
}

// cloudRig is a running role over one mixed instance.
type cloudRig struct {
	*role
	plane  *fakePlane
	auth   *pki.Authority
	key    string
	keyID  string
	engine *httptest.Server
	stop   func() error
}

func testConfig(engine string) Config {
	return Config{Name: "gw", Listen: "127.0.0.1:0", TLSListen: "127.0.0.1:0", OpsListen: "127.0.0.1:0", SecretsDir: "unused",
		Instances:        []Instance{{Name: "m", URL: engine, Role: "mixed", Model: "big"}},
		FirstByteTimeout: 10 * time.Second, StallTimeout: 10 * time.Second, AnswerTimeout: 10 * time.Second,
		ProbeInterval: 10 * time.Millisecond, MaxInflight: 100, MaxAttempts: 3, Drain: 2 * time.Second}
}

func startCloud(t *testing.T, engine http.Handler, adjust func(*Config)) *cloudRig {
	t.Helper()
	r := &cloudRig{plane: &fakePlane{}}
	k, err := tenants.MintKey()
	if err != nil {
		t.Fatal(err)
	}
	r.key, r.keyID = k.Reveal(), k.ID
	index, err := tenants.NewIndex(&tenants.Snapshot{Version: 1, ExpiresAt: time.Now().Add(time.Hour),
		Tenants: []tenants.Tenant{{ID: tenant, Name: "a", State: tenants.Active}},
		Keys: []tenants.KeyInfo{{ID: k.ID, TenantID: tenant, State: tenants.Active,
			Hashes: []tenants.SecretHash{{SHA256: tenants.HashSecret(k.Secret)}}}}})
	if err != nil {
		t.Fatal(err)
	}
	r.plane.index.Store(index)
	if r.auth, err = pki.OpenAuthority(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	r.engine = httptest.NewServer(engine)
	t.Cleanup(r.engine.Close)
	tel, err := telemetry.New(t.Context(), telemetry.Options{Role: "cloud", Name: "gw"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tel.Shutdown() })
	conf := testConfig(r.engine.URL)
	if adjust != nil {
		adjust(&conf)
	}
	if r.role, err = newRole(conf, r.plane, r.auth, tel, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.run(ctx) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = r.stop() })
	await(t, "instance ready", func() bool { return r.health().Ready == len(conf.Instances) })
	return r
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// engineFake answers every request with one word, streamed or not.
type engineFake struct {
	gate chan struct{} // when set, answers wait for it
}

func (e engineFake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		_, _ = io.WriteString(w, `{"status":"ok","epoch":"e","role":"mixed","model":"big"}`)
		return
	}
	var body struct {
		Stream bool `json:"stream"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	if e.gate != nil {
		select {
		case <-e.gate:
		case <-r.Context().Done():
			return
		}
	}
	if !body.Stream {
		_, _ = io.WriteString(w, `{"id":"c","object":"chat.completion","created":1,"model":"big","choices":[{"index":0,"message":{"role":"assistant","content":"on"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	chunk := `{"id":"c","object":"chat.completion.chunk","created":1,"model":"big","choices":[%s]}`
	for _, c := range []string{`{"index":0,"delta":{"content":"on"},"finish_reason":null}`, `{"index":0,"delta":{},"finish_reason":"stop"}`} {
		fmt.Fprintf(w, "data: "+chunk+"\n\n", c)
		_ = http.NewResponseController(w).Flush()
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// transports are the ways to the API. device, when not nil, is a certificate.
func (r *cloudRig) transports(t *testing.T, device *tls.Certificate) map[string]http.RoundTripper {
	conf := func() *tls.Config {
		c := &tls.Config{RootCAs: r.auth.Pool(), MinVersion: tls.VersionTLS13}
		if device != nil {
			// Sent even where the server does not list its authority.
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return device, nil }
		}
		return c
	}
	h1 := conf()
	h1.NextProtos = []string{"http/1.1"}
	one := &http.Transport{TLSClientConfig: h1}
	two := &http.Transport{TLSClientConfig: conf(), ForceAttemptHTTP2: true}
	three := &http3.Transport{TLSClientConfig: conf(), QUICConfig: &quic.Config{}}
	t.Cleanup(func() { one.CloseIdleConnections(); two.CloseIdleConnections(); _ = three.Close() })
	return map[string]http.RoundTripper{"HTTP/1.1": one, "HTTP/2.0": two, "HTTP/3.0": three}
}

func (r *cloudRig) tlsURL() string   { return "https://" + r.servers.socks.tls.Addr().String() }
func (r *cloudRig) plainURL() string { return "http://" + r.servers.socks.plain.Addr().String() }
func (r *cloudRig) opsURL() string   { return "http://" + r.servers.socks.ops.Addr().String() }

func send(t *testing.T, rt http.RoundTripper, url, key, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(data)
}

const (
	hello  = `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`
	hellos = `{"model":"auto","messages":[{"role":"user","content":"hi"}],"stream":true}`
)

func TestEveryTransport(t *testing.T) {
	r := startCloud(t, engineFake{}, nil)
	for proto, rt := range r.transports(t, nil) {
		t.Run(proto, func(t *testing.T) {
			resp, body := send(t, rt, r.tlsURL()+"/v1/chat/completions", r.key, hello)
			if resp.StatusCode != 200 || resp.Proto != proto || !strings.Contains(body, `"tier":"cloud"`) {
				t.Errorf("%s %d %s", resp.Proto, resp.StatusCode, body)
			}
			if alt := resp.Header.Get("Alt-Svc"); (alt != "") != (proto != "HTTP/3.0") {
				t.Errorf("Alt-Svc %q over %s", alt, proto)
			}
			resp, body = send(t, rt, r.tlsURL()+"/v1/chat/completions", r.key, hellos)
			if resp.StatusCode != 200 || !strings.HasSuffix(body, "data: [DONE]\n\n") || !strings.Contains(body, `"weir"`) {
				t.Errorf("stream: %d %s", resp.StatusCode, body)
			}
			if resp, body = send(t, rt, r.tlsURL()+"/v1/chat/completions", "wk_none", hello); resp.StatusCode != 401 {
				t.Errorf("bad key: %d %s", resp.StatusCode, body)
			}
			if _, body = send(t, rt, r.tlsURL()+"/edge/v1/snapshot", "", ""); body != proto {
				t.Errorf("mounted route answered %q", body)
			}
		})
	}
	resp, body := send(t, http.DefaultTransport, r.plainURL()+"/v1/chat/completions", r.key, hello)
	if resp.StatusCode != 200 || resp.Header.Get("Alt-Svc") != "" {
		t.Errorf("plain: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestEscalation(t *testing.T) {
	r := startCloud(t, engineFake{}, nil)
	device, err := r.auth.Issue(pki.Spec{Peer: pki.Peer{Role: pki.RoleEdge, Name: "dev-1", Tenant: tenant}})
	if err != nil {
		t.Fatal(err)
	}
	const draft = `{"model":"auto","messages":[{"role":"user","content":"hi"}],"weir":{"draft":{"text":"no","confidence":0.25,"reason":"low_confidence"}}}`
	for proto, rt := range r.transports(t, &device) {
		op := contract.NewID()
		resp, body := send(t, rt, r.tlsURL()+"/v1/chat/completions", "", draft, contract.HeaderOperation, op, contract.HeaderKeyID, r.keyID)
		if resp.StatusCode != 200 || resp.Proto != proto || resp.Header.Get(contract.HeaderReason) != "low_confidence" ||
			resp.Header.Get(contract.HeaderConfidence) != "0.2500" || resp.Header.Get(contract.HeaderRequestID) != op {
			t.Fatalf("%s: %d %v %s", proto, resp.StatusCode, resp.Header, body)
		}
		rows := r.plane.ledger()
		if last := rows[len(rows)-1]; last.OperationID != op || last.DeviceID != "dev-1" || last.KeyID != r.keyID || last.TenantID != tenant || last.Reason != "low_confidence" {
			t.Errorf("%s: ledger row %+v", proto, last)
		}
	}
	rt := r.transports(t, &device)["HTTP/3.0"]
	if resp, body := send(t, rt, r.tlsURL()+"/v1/chat/completions", "", hello); resp.StatusCode != 200 {
		t.Errorf("a device's own use: %d %s", resp.StatusCode, body)
	}
	if resp, body := send(t, rt, r.tlsURL()+"/v1/chat/completions", "", hello, contract.HeaderKeyID, "nosuchkey"); resp.StatusCode != 401 {
		t.Errorf("unknown key id: %d %s", resp.StatusCode, body)
	}
	if resp, body := send(t, rt, r.tlsURL()+"/v1/chat/completions", "", hello, contract.HeaderOperation, "7"); resp.StatusCode != 400 || !strings.Contains(body, contract.HeaderOperation) {
		t.Errorf("bad operation: %d %s", resp.StatusCode, body)
	}
}

func TestForeignCertificates(t *testing.T) {
	r := startCloud(t, engineFake{}, nil)
	issue := func(a *pki.Authority, p pki.Peer) *tls.Certificate {
		c, err := a.Issue(pki.Spec{Peer: p})
		if err != nil {
			t.Fatal(err)
		}
		return &c
	}
	worker := issue(r.auth, pki.Peer{Role: pki.RoleWorker, Name: "w"})
	if resp, body := send(t, r.transports(t, worker)["HTTP/2.0"], r.tlsURL()+"/v1/chat/completions", "", hello); resp.StatusCode != 401 {
		t.Errorf("a worker's certificate stood in for a key: %d %s", resp.StatusCode, body)
	}
	lost := issue(r.auth, pki.Peer{Role: pki.RoleEdge, Name: "d", Tenant: "33333333-3333-4333-8333-333333333333"})
	if resp, body := send(t, r.transports(t, lost)["HTTP/2.0"], r.tlsURL()+"/v1/chat/completions", "", hello, contract.HeaderKeyID, r.keyID); resp.StatusCode != 401 {
		t.Errorf("a device used another tenant's key: %d %s", resp.StatusCode, body)
	}
	if resp, body := send(t, r.transports(t, lost)["HTTP/2.0"], r.tlsURL()+"/v1/chat/completions", "", hello); resp.StatusCode != 403 {
		t.Errorf("a device of an unknown tenant: %d %s", resp.StatusCode, body)
	}
	other, err := pki.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	stranger := issue(other, pki.Peer{Role: pki.RoleEdge, Name: "d", Tenant: tenant})
	for proto, rt := range r.transports(t, stranger) {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, r.tlsURL()+"/v1/chat/completions", strings.NewReader(hello))
		req.Header.Set("Content-Type", "application/json")
		if resp, err := rt.RoundTrip(req); err == nil {
			resp.Body.Close()
			t.Errorf("%s: a certificate of another authority got status %d", proto, resp.StatusCode)
		}
	}
}

func TestOps(t *testing.T) {
	r := startCloud(t, engineFake{}, nil)
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	for path, want := range map[string]string{"/livez": "ok", "/readyz": `"status":"ready"`, "/metrics": "weir_instance_ready", "/debug/pprof/cmdline": ""} {
		if resp, body := send(t, tr, r.opsURL()+path, "", ""); resp.StatusCode != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.200s", path, resp.StatusCode, body)
		}
	}
	r.plane.down.Store(true)
	if resp, body := send(t, tr, r.opsURL()+"/readyz", "", ""); resp.StatusCode != 200 || !strings.Contains(body, "degraded") {
		t.Errorf("without a database: %d %s", resp.StatusCode, body)
	}
	if resp, _ := send(t, tr, r.plainURL()+"/metrics", "", ""); resp.StatusCode != 404 {
		t.Errorf("the API serves /metrics: %d", resp.StatusCode)
	}
	r.plane.index.Store(nil)
	if resp, body := send(t, tr, r.opsURL()+"/readyz", "", ""); resp.StatusCode != 503 || !strings.Contains(body, "starting") {
		t.Errorf("without a snapshot: %d %s", resp.StatusCode, body)
	}
	if resp, body := send(t, tr, r.plainURL()+"/v1/models", r.key, ""); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("models without a snapshot: %d %s", resp.StatusCode, body)
	}
}

func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, key := range []string{"listen", "tls_listen", "ops_listen"} {
		c := testConfig("http://127.0.0.1:1")
		*map[string]*string{"listen": &c.Listen, "tls_listen": &c.TLSListen, "ops_listen": &c.OpsListen}[key] = l.Addr().String()
		if _, err := bind(&c); err == nil || !strings.Contains(err.Error(), "cloud."+key) || !strings.Contains(err.Error(), "taken") {
			t.Errorf("%s: %v", key, err)
		}
	}
}
