// Package cloudtest is a cloud for the tests of the edge: real TLS, HTTP/2 and
// HTTP/3 on one port with certificates of a real authority, and a UDP path
// that can be cut. What it answers is the test's to say.
package cloudtest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/weirhq/weir/edge/identity"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/listen"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
)

// Tenant is the tenant of every device that joins.
const Tenant = "0191d2a0-0000-7000-8000-000000000001"

// Device is the id of the device that joins.
const Device = "device-1"

// Seen is a request that reached the cloud.
type Seen struct {
	Proto  string // "HTTP/3.0" or "HTTP/2.0"
	Path   string
	Header http.Header
	Body   []byte
	Peer   pki.Peer
}

// Cloud is a running test cloud.
type Cloud struct {
	URL       string
	Authority *pki.Authority
	Signer    ed25519.PrivateKey
	Key       tenants.Key // an API key of Tenant
	UDP       *UDPPath

	mu       sync.Mutex
	seen     []Seen
	answer   http.HandlerFunc // chat and text completions
	snapshot []byte
	etag     string
	usage    []tenants.UsageRow
	tokens   map[string]bool // join tokens not yet used
	stop     func()
}

// Start starts a cloud that ends with the test.
func Start(t testing.TB) *Cloud {
	t.Helper()
	authority, err := pki.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, signer, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := tenants.MintKey()
	if err != nil {
		t.Fatal(err)
	}
	c := &Cloud{Authority: authority, Signer: signer, Key: key, tokens: map[string]bool{}}
	c.SetSnapshot(t, c.DefaultSnapshot(1))
	c.listen(t)
	t.Cleanup(c.Stop)
	return c
}

// Twin starts another gateway of the same cloud.
func (c *Cloud) Twin(t testing.TB) *Cloud {
	t.Helper()
	twin := &Cloud{Authority: c.Authority, Signer: c.Signer, Key: c.Key, tokens: map[string]bool{}}
	twin.SetSnapshot(t, twin.DefaultSnapshot(1))
	twin.listen(t)
	t.Cleanup(twin.Stop)
	return twin
}

func (c *Cloud) listen(t testing.TB) {
	t.Helper()
	cert, err := c.Authority.Issue(pki.Spec{Peer: pki.Peer{Role: pki.RoleGateway, Name: "gw"}, Hosts: pki.LoopbackHosts()})
	if err != nil {
		t.Fatal(err)
	}
	cfg := pki.ServerConfig((*pki.Static)(&cert), c.Authority.Pool())
	tcp, udp, err := listen.Both("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	inner, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.UDP = newUDPPath(udp, inner.LocalAddr())
	c.URL = "https://" + tcp.Addr().String()
	handler := c.handler()
	h2cfg := cfg.Clone()
	h2cfg.NextProtos = []string{"h2", "http/1.1"}
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	h2 := &http.Server{Handler: handler, TLSConfig: h2cfg, ErrorLog: quiet}
	h3 := &http3.Server{Handler: handler, TLSConfig: http3.ConfigureTLSConfig(cfg.Clone()), QUICConfig: &quic.Config{}}
	var wg sync.WaitGroup
	wg.Go(func() { _ = h2.ServeTLS(tcp, "", "") })
	wg.Go(func() { _ = h3.Serve(inner) })
	c.stop = sync.OnceFunc(func() {
		_ = h2.Close()
		_ = h3.Close()
		_ = inner.Close()
		c.UDP.close()
		wg.Wait()
	})
}

// Stop ends the cloud: its ports are closed.
func (c *Cloud) Stop() { c.stop() }

// Answer sets what chat and text completions get.
func (c *Cloud) Answer(h http.HandlerFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = h
}

// Seen returns the requests so far whose path has not the prefix of a poll.
func (c *Cloud) Seen() []Seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Seen
	for _, s := range c.seen {
		if s.Path != "/edge/v1/snapshot" && s.Path != "/edge/v1/usage" {
			out = append(out, s)
		}
	}
	return out
}

// Pinged reports whether a device has reached this gateway.
func (c *Cloud) Pinged() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen) > 0
}

// Usage returns the rows reported so far.
func (c *Cloud) Usage() []tenants.UsageRow {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]tenants.UsageRow(nil), c.usage...)
}

// DefaultSnapshot is a snapshot with one tenant and Key.
func (c *Cloud) DefaultSnapshot(version int64) *tenants.Snapshot {
	return &tenants.Snapshot{
		Version: version, IssuedAt: time.Now(), ExpiresAt: time.Now().Add(24 * time.Hour),
		Tenants: []tenants.Tenant{{ID: Tenant, Name: "demo", State: tenants.Active}},
		Keys: []tenants.KeyInfo{{ID: c.Key.ID, TenantID: Tenant, State: tenants.Active, Scopes: []string{"explain"},
			Hashes: []tenants.SecretHash{{SHA256: tenants.HashSecret(c.Key.Secret)}}}},
		Models:  []tenants.Model{{Name: "auto", Cascade: true}, {Name: "hub-cloud", Tier: tenants.Cloud}},
		Classes: []tenants.Class{{Name: "standard", Default: true}},
	}
}

// Prices is a price book for the cloud, in micro-dollars per million tokens.
func Prices(input, output int64) []tenants.Price {
	return []tenants.Price{{Version: 1, Tier: tenants.Cloud, Model: "*", EffectiveFrom: time.Now().Add(-time.Hour),
		Input: input, CachedInput: input, Output: output}}
}

// SetSnapshot signs a snapshot and serves it.
func (c *Cloud) SetSnapshot(t testing.TB, s *tenants.Snapshot) {
	t.Helper()
	env, err := s.Sign(c.Signer)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshot, c.etag = env, fmt.Sprintf(`"%d"`, s.Version)
}

// MintToken makes a join token that works once.
func (c *Cloud) MintToken(t testing.TB) tenants.JoinToken {
	t.Helper()
	tok, err := tenants.MintJoinToken(c.Authority.Pin())
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens[tok.Reveal()] = true
	return tok
}

// DeviceTLS returns a device's client configuration.
func (c *Cloud) DeviceTLS(t testing.TB) *tls.Config {
	t.Helper()
	cert, err := c.Authority.Issue(pki.Spec{Peer: pki.Peer{Role: pki.RoleEdge, Name: Device, Tenant: Tenant}})
	if err != nil {
		t.Fatal(err)
	}
	return pki.ClientConfig((*pki.Static)(&cert), c.Authority.Pool(), pki.RoleGateway)
}

func (c *Cloud) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+identity.PathJoin, c.serveJoin)
	mux.HandleFunc("GET /edge/v1/snapshot", c.serveSnapshot)
	mux.HandleFunc("POST /edge/v1/usage", c.serveUsage)
	mux.HandleFunc("POST /v1/", c.serveModel)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		peer, err := pki.PeerOf(r.TLS)
		if err != nil && r.URL.Path != identity.PathJoin {
			openai.Unauthorized("device certificate needed").Write(w, nil)
			return
		}
		c.mu.Lock()
		c.seen = append(c.seen, Seen{r.Proto, r.URL.Path, r.Header.Clone(), body, peer})
		c.mu.Unlock()
		r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
		mux.ServeHTTP(w, r)
	})
}

type bodyKey struct{}

// Body returns the body of a request inside an Answer.
func Body(r *http.Request) []byte {
	b, _ := r.Context().Value(bodyKey{}).([]byte)
	return b
}

func (c *Cloud) serveJoin(w http.ResponseWriter, r *http.Request) {
	var req struct{ Token, CSR string }
	_ = json.Unmarshal(Body(r), &req)
	c.mu.Lock()
	ok := c.tokens[req.Token]
	delete(c.tokens, req.Token)
	c.mu.Unlock()
	if !ok {
		openai.Unauthorized("the join token is used or has expired").Write(w, nil)
		return
	}
	leaf, err := c.Authority.SignCSR([]byte(req.CSR), pki.Spec{Peer: pki.Peer{Role: pki.RoleEdge, Name: Device, Tenant: Tenant}})
	if err != nil {
		openai.BadRequest("csr", openai.CodeInvalidValue, "%s", err).Write(w, nil)
		return
	}
	pub := c.Signer.Public().(ed25519.PublicKey)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"certificate": string(leaf), "ca": string(c.Authority.CertPEM()), "device_id": Device, "tenant_id": Tenant, "snapshot_key": []byte(pub),
	})
}

func (c *Cloud) serveSnapshot(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.Header().Set("ETag", c.etag)
	if r.Header.Get("If-None-Match") == c.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(c.snapshot)
}

func (c *Cloud) serveUsage(w http.ResponseWriter, r *http.Request) {
	rows, rejected, err := tenants.DecodeUsage(Body(r), Tenant, Device, time.Now())
	if err != nil {
		openai.BadRequest("", openai.CodeInvalidJSON, "%s", err).Write(w, nil)
		return
	}
	c.mu.Lock()
	for _, row := range rows {
		c.usage = append(c.usage, row.Row())
	}
	c.mu.Unlock()
	_ = json.NewEncoder(w).Encode(tenants.UsageReply{Accepted: len(rows), Rejected: rejected})
}

func (c *Cloud) serveModel(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	answer := c.answer
	c.mu.Unlock()
	if answer == nil {
		answer = Say("from the cloud")
	}
	answer(w, r)
}

// Say answers a completion, as a stream if asked for, as a gateway does.
func Say(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Stream bool `json:"stream"`
		}
		_ = json.Unmarshal(Body(r), &req)
		weir := `{"tier":"cloud","model":"hub-cloud","reason":"low_confidence","confidence":null,"edge_tokens":0,"cloud_tokens":3,"cost_usd":0.000001,"queue_ms":0.5,"ttft_ms":1,"attempts":1}`
		w.Header().Set(contract.HeaderModel, "hub-cloud")
		w.Header().Set(contract.HeaderInstance, "i-7")
		quoted, _ := json.Marshal(text)
		if !req.Stream {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"id":"c1","object":"chat.completion","created":1,"model":"hub-cloud","choices":[{"index":0,"message":{"role":"assistant","content":%s,"refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8},"weir":%s}`, quoted, weir)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		send := func(s string) {
			fmt.Fprintf(w, "data: %s\n\n", s)
			_ = http.NewResponseController(w).Flush()
		}
		send(`{"id":"c1","object":"chat.completion.chunk","created":1,"model":"hub-cloud","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
		send(fmt.Sprintf(`{"id":"c1","object":"chat.completion.chunk","created":1,"model":"hub-cloud","choices":[{"index":0,"delta":{"content":%s},"finish_reason":null}]}`, quoted))
		send(fmt.Sprintf(`{"id":"c1","object":"chat.completion.chunk","created":1,"model":"hub-cloud","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"weir":%s}`, weir))
		send("[DONE]")
	}
}
