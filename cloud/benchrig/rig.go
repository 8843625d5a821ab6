// Package benchrig is what suites of "weir bench" measure gateways with: a fake
// engine that answers at once, so that nothing hides the gateway's own work,
// any number of gateways before it, and requests that go to two of them in turn.
package benchrig

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
)

// Tenant is the id of the only tenant.
const Tenant = "00000000-0000-4000-8000-000000000001"

const model = "fake"

// Log swallows lines after they are written, as in production.
var Log = slog.New(slog.NewTextHandler(io.Discard, nil))

// Rig is an engine and whatever else runs until Close.
type Rig struct {
	Engine    string // URL
	Directory Directory
	Key       string // of the tenant
	client    *http.Client
	stops     []func()
}

// Directory knows one tenant with one key.
type Directory struct{ index *tenants.Index }

// Index implements the gateway's Directory.
func (d Directory) Index() *tenants.Index { return d.index }

// New starts an engine and mints a key of a tenant with limits.
func New(limits ...tenants.Limit) (*Rig, error) {
	r := &Rig{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	r.stops = append(r.stops, r.client.CloseIdleConnections)
	var err error
	if r.Engine, err = r.serve(fake.New(fake.Options{Model: model})); err == nil {
		err = r.mint(limits)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Close stops everything, what was started last first.
func (r *Rig) Close() {
	for _, stop := range slices.Backward(r.stops) {
		stop()
	}
}

// Background runs f until Close.
func (r *Rig) Background(f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	r.stops = append(r.stops, func() { <-done }, cancel)
}

// Gateway starts one over the engine and returns its URL once it is ready.
func (r *Rig) Gateway(ctx context.Context, rec gateway.Recorder, admission func(*pool.Pool) (gateway.Admission, error)) (string, error) {
	upstream := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	r.stops = append(r.stops, upstream.CloseIdleConnections)
	p, err := pool.New(pool.Options{Members: []pool.Member{{Name: "fake", URL: r.Engine, Model: model}}, Client: upstream, Log: Log})
	if err != nil {
		return "", err
	}
	r.Background(p.Run)
	tel, err := telemetry.New(ctx, telemetry.Options{Role: "cloud", Name: "bench"})
	if err != nil {
		return "", err
	}
	r.stops = append(r.stops, func() { _ = tel.Shutdown() })
	adm, err := admission(p)
	if err != nil {
		return "", err
	}
	g, err := gateway.New(gateway.Options{Directory: r.Directory, Admission: adm, Recorder: rec, Pool: p, Client: upstream, Telemetry: tel,
		Log: Log, Models: map[string]gateway.Model{model: {Pool: model, Named: true}}, Node: "bench", Epoch: "bench"})
	if err != nil {
		return "", err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !p.Status()[0].Ready {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-tick.C:
		}
	}
	return r.serve(g)
}

// Bare starts a gateway that admits everybody and keeps no rows.
func (r *Rig) Bare(ctx context.Context) (string, error) {
	nobody := func(*pool.Pool) (gateway.Admission, error) { return gateway.AdmitAll{}, nil }
	return r.Gateway(ctx, gateway.AtEnd(func(tenants.UsageRecord) {}), nobody)
}

func (r *Rig) mint(limits []tenants.Limit) error {
	k, err := tenants.MintKey()
	if err != nil {
		return err
	}
	r.Key = k.Reveal()
	r.Directory.index, err = tenants.NewIndex(&tenants.Snapshot{Version: 1, ExpiresAt: time.Now().Add(time.Hour), Limits: limits,
		Tenants: []tenants.Tenant{{ID: Tenant, Name: "bench", State: tenants.Active}},
		Keys:    []tenants.KeyInfo{{ID: k.ID, TenantID: Tenant, State: tenants.Active, Hashes: []tenants.SecretHash{{SHA256: tenants.HashSecret(k.Secret)}}}},
		Classes: []tenants.Class{{Name: "standard", Band: 1, Default: true, MaxQueueMillis: 15_000}},
		Prices:  []tenants.Price{{Version: 1, Tier: tenants.Cloud, Model: "*", Input: 100_000, Output: 400_000}}})
	return err
}

// serve listens on a free loopback port and returns the URL.
func (r *Rig) serve(h http.Handler) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	r.Background(func(context.Context) { _ = srv.Serve(l) }) // ends with Close
	r.stops = append(r.stops, func() { _ = srv.Close() })
	return "http://" + l.Addr().String(), nil
}

// InTurn sends n requests to each of two URLs in turn, after a warm-up, and
// returns how long they took, sorted.
func (r *Rig) InTurn(ctx context.Context, a, b string, stream bool, n int) (as, bs []time.Duration, err error) {
	for i := range n + n/10 {
		ta, err := r.Ask(ctx, a, stream)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", a, err)
		}
		tb, err := r.Ask(ctx, b, stream)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", b, err)
		}
		if i >= n/10 {
			as, bs = append(as, ta), append(bs, tb)
		}
	}
	slices.Sort(as)
	slices.Sort(bs)
	return as, bs, nil
}

// Ask sends a request and returns the time to its first bytes (a stream) or to
// its end.
func (r *Rig) Ask(ctx context.Context, url string, stream bool) (took time.Duration, err error) {
	body := fmt.Appendf(nil, `{"model":%q,"stream":%t,"max_tokens":16,"messages":[{"role":"user","content":"turn on the light in the kitchen"}]}`, model, stream)
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.Key)
	resp, err := r.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return 0, fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	if stream {
		if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
			return 0, err
		}
		took = time.Since(began)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, err
	}
	if !stream {
		took = time.Since(began)
	}
	return took, nil
}
