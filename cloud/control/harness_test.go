package control

import (
	"bytes"
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
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	os.Exit(testpg.Run(m))
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func options(t *testing.T, url string) Options {
	t.Helper()
	return Options{
		DatabaseURL: url, SecretsDir: t.TempDir(), DataDir: t.TempDir(), Log: quiet, Poll: 20 * time.Millisecond,
		Models: []tenants.Model{{Name: "auto", Cascade: true}, {Name: "hub-cloud", Tier: tenants.Cloud}},
	}
}

// plane is a control plane that serves on a plain and a TLS listener.
type plane struct {
	*Control
	o     Options
	plain *httptest.Server
	url   string       // of the TLS listener
	stop  func() error // ends Run and returns its error; may be called twice
}

func start(t *testing.T, o Options) *plane {
	t.Helper()
	return startWith(t, o, nil)
}

// startWith starts a plane that tells of instances; nil: of none.
func startWith(t *testing.T, o Options, instances Instances) *plane {
	t.Helper()
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if instances != nil {
		c.Attach(instances)
	}
	e := gin.New()
	c.Register(e)
	own, err := c.Authority().Source(pki.Spec{Peer: pki.Peer{Role: pki.RoleGateway, Name: "test"}, Hosts: pki.LoopbackHosts()})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// Not httptest's TLS, which puts a certificate of its own before ours.
	secure := &http.Server{Handler: e, TLSConfig: pki.ServerConfig(own, c.Authority().Pool()),
		ErrorLog: slog.NewLogLogger(quiet.Handler(), slog.LevelError)}
	go func() { _ = secure.ServeTLS(ln, "", "") }()
	p := &plane{Control: c, o: o, plain: httptest.NewServer(e), url: "https://" + ln.Addr().String()}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var failed error
	go func() { failed = c.Run(ctx); close(ended) }()
	p.stop = func() error { cancel(); <-ended; return failed }
	t.Cleanup(func() { p.plain.Close(); _ = secure.Close(); _ = p.stop() })
	return p
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (p *plane) ready(t *testing.T) {
	t.Helper()
	eventually(t, "ready", func() bool { return p.DatabaseUp() && p.Index() != nil })
}

func (p *plane) adminToken(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.o.SecretsDir, AdminTokenFile))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// answer is a response whose body was read.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) into(t *testing.T, v any) {
	t.Helper()
	if a.status/100 != 2 {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	if err := json.Unmarshal(a.body, v); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
}

// problem returns the code and the param of an error body.
func (a answer) problem() (code, param string) {
	var e struct{ Error struct{ Code, Param string } }
	_ = json.Unmarshal(a.body, &e)
	return e.Error.Code, e.Error.Param
}

func send(t *testing.T, client *http.Client, method, url, bearer string, body any, header ...string) answer {
	t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		r = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, r)
	if err != nil {
		t.Fatal(err)
	}
	if r != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, b}
}

// admin calls the admin API as the first admin.
func (p *plane) admin(t *testing.T, method, path string, body any) answer {
	t.Helper()
	return send(t, http.DefaultClient, method, p.plain.URL+"/admin/v1/"+path, p.adminToken(t), body)
}

func (p *plane) newTenant(t *testing.T, name string) string {
	t.Helper()
	var made struct{ ID string }
	p.admin(t, http.MethodPost, "tenants", map[string]string{"name": name}).into(t, &made)
	return made.ID
}

func (p *plane) newKey(t *testing.T, tenantID string) (id, text string) {
	t.Helper()
	var made struct{ ID, Key string }
	p.admin(t, http.MethodPost, "keys", map[string]string{"tenant_id": tenantID}).into(t, &made)
	return made.ID, made.Key
}

func (p *plane) newJoinToken(t *testing.T, tenantID string) string {
	t.Helper()
	var made struct{ Token string }
	p.admin(t, http.MethodPost, "join-tokens", map[string]string{"tenant_id": tenantID, "name": "kitchen"}).into(t, &made)
	return made.Token
}

// client speaks TLS to the plane with a configuration.
func client(t *testing.T, c *tls.Config) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

// device is a joined device.
type device struct {
	JoinReply
	http *http.Client
	p    *plane
}

// joinDevice joins as an edge node does: checking the pin first. It returns
// once the plane has loaded the device's tenant.
func (p *plane) joinDevice(t *testing.T, tenantID string) *device {
	t.Helper()
	text := p.newJoinToken(t, tenantID)
	token, err := tenants.ParseJoinToken(text)
	if err != nil {
		t.Fatal(err)
	}
	csr, key, err := pki.NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	d := &device{p: p}
	hello := client(t, pki.JoinConfig(token.Pin, "127.0.0.1"))
	send(t, hello, http.MethodPost, p.url+"/edge/v1/join", "", JoinRequest{Token: text, CSR: string(csr)}).into(t, &d.JoinReply)
	own, err := pki.ParseStatic([]byte(d.Certificate), key)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pki.ParsePool([]byte(d.CA))
	if err != nil {
		t.Fatal(err)
	}
	d.http = client(t, pki.ClientConfig(own, pool, pki.RoleGateway))
	eventually(t, "the device's tenant is known", func() bool { return p.Index().Tenant(tenantID) != nil })
	return d
}

func (d *device) call(t *testing.T, method, path string, body any, header ...string) answer {
	t.Helper()
	return send(t, d.http, method, d.p.url+"/edge/v1/"+path, "", body, header...)
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }
