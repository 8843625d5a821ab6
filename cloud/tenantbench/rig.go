package tenantbench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/weirhq/weir/cloud/admit"
	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/rows"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/bench"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/lease"
	"github.com/weirhq/weir/tenants/ledger"
)

// rig is a fake engine behind two gateways: one with limits, leases, queue and
// rows on disk, and one that admits everybody and records nothing.
type rig struct {
	with, without string // URLs
	key           string
	client        *http.Client
	stops         []func()
}

func (r *rig) close() {
	for _, stop := range slices.Backward(r.stops) {
		stop()
	}
}

type directory struct{ index *tenants.Index }

func (d directory) Index() *tenants.Index { return d.index }

const model = "fake"

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil)) // lines are written, as in production

func newRig(ctx context.Context, db *database, env bench.Env) (r *rig, err error) {
	r = &rig{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	r.stops = append(r.stops, r.client.CloseIdleConnections)
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	engine, err := r.serve(fake.New(fake.Options{Model: model}))
	if err != nil {
		return nil, err
	}
	index, err := r.mint()
	if err != nil {
		return nil, err
	}
	recorder, err := rows.Open(rows.Options{Dir: filepath.Join(env.Dir, "rows"), Sink: ledger.NewStore(db.pool), Log: quiet})
	if err != nil {
		return nil, err
	}
	r.background(recorder.Run)
	admission := func(p *pool.Pool) (gateway.Admission, error) {
		a, err := admit.New(admit.Options{Directory: directory{index}, Pool: p, Leases: lease.NewStore(db.pool), Recovered: recorder.Recovered(),
			Gateway: lease.Gateway{Node: recorder.Node(), Epoch: "bench", Name: "bench"}, Log: quiet})
		if err == nil {
			r.background(a.Run)
		}
		return a, err
	}
	nobody := func(*pool.Pool) (gateway.Admission, error) { return gateway.AdmitAll{}, nil }
	if r.with, err = r.gateway(ctx, engine, index, recorder, admission); err != nil {
		return nil, err
	}
	r.without, err = r.gateway(ctx, engine, index, gateway.AtEnd(func(tenants.UsageRecord) {}), nobody)
	return r, err
}

// gateway starts one over the engine and waits until it is ready.
func (r *rig) gateway(ctx context.Context, engine string, index *tenants.Index, rec gateway.Recorder,
	admission func(*pool.Pool) (gateway.Admission, error)) (string, error) {
	upstream := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	r.stops = append(r.stops, upstream.CloseIdleConnections)
	p, err := pool.New(pool.Options{Members: []pool.Member{{Name: "fake", URL: engine, Model: model}}, Client: upstream, Log: quiet})
	if err != nil {
		return "", err
	}
	r.background(p.Run)
	tel, err := telemetry.New(ctx, telemetry.Options{Role: "cloud", Name: "bench"})
	if err != nil {
		return "", err
	}
	r.stops = append(r.stops, func() { _ = tel.Shutdown() })
	adm, err := admission(p)
	if err != nil {
		return "", err
	}
	g, err := gateway.New(gateway.Options{Directory: directory{index}, Admission: adm, Recorder: rec, Pool: p, Client: upstream, Telemetry: tel,
		Log: quiet, Models: map[string]gateway.Model{model: {Pool: model, Named: true}}, Node: "bench", Epoch: "bench"})
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

// mint makes a key of a tenant with six limits.
func (r *rig) mint() (*tenants.Index, error) {
	k, err := tenants.MintKey()
	if err != nil {
		return nil, err
	}
	r.key = k.Reveal()
	s := &tenants.Snapshot{Version: 1, ExpiresAt: time.Now().Add(time.Hour),
		Tenants: []tenants.Tenant{{ID: benchTenant, Name: "bench", State: tenants.Active}},
		Keys:    []tenants.KeyInfo{{ID: k.ID, TenantID: benchTenant, State: tenants.Active, Hashes: []tenants.SecretHash{{SHA256: tenants.HashSecret(k.Secret)}}}},
		Classes: []tenants.Class{{Name: "standard", Band: 1, Default: true, MaxQueueMillis: 15_000}},
		Prices:  []tenants.Price{{Version: 1, Tier: tenants.Cloud, Model: "*", Input: 100_000, Output: 400_000}}}
	for _, l := range sixLimits() {
		s.Limits = append(s.Limits, tenants.Limit{ID: l.ID, TenantID: benchTenant, KeyID: l.Key,
			Kind: tenants.LimitKind(l.Kind.String()), Window: tenants.LimitWindow(l.Window.String()), Limit: l.Max})
	}
	return tenants.NewIndex(s)
}

// serve listens on a free loopback port and returns the URL.
func (r *rig) serve(h http.Handler) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	r.background(func(context.Context) { _ = srv.Serve(l) }) // ends with Close
	r.stops = append(r.stops, func() { _ = srv.Close() })
	return "http://" + l.Addr().String(), nil
}

// background runs f until close.
func (r *rig) background(f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	r.stops = append(r.stops, func() { <-done }, cancel)
}

// added is how much longer the median of n requests takes through the gateway
// with tenants. Requests go to both in turn, after a warm-up.
func (r *rig) added(ctx context.Context, n int) (time.Duration, error) {
	with, without := make([]time.Duration, 0, n), make([]time.Duration, 0, n)
	for i := range n + n/10 {
		a, err := r.one(ctx, r.without)
		if err != nil {
			return 0, err
		}
		b, err := r.one(ctx, r.with)
		if err != nil {
			return 0, err
		}
		if i >= n/10 {
			without, with = append(without, a), append(with, b)
		}
	}
	slices.Sort(with)
	slices.Sort(without)
	return with[n/2] - without[n/2], nil
}

var body = []byte(`{"model":"fake","max_tokens":16,"messages":[{"role":"user","content":"turn on the light in the kitchen"}]}`)

// one sends a request and returns the time to its end.
func (r *rig) one(ctx context.Context, url string) (time.Duration, error) {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.key)
	resp, err := r.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return time.Since(began), nil
}
