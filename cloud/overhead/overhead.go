// Package overhead measures what the gateway adds to a request: the same
// requests go in turn to a fake engine directly and through a gateway before
// it, and percentiles of both are subtracted. The engine answers at once, so
// nothing hides the gateway's own work.
package overhead

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
	"github.com/weirhq/weir/internal/bench"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
)

// Requests is how many requests of each kind go each way.
const Requests = 2000

// Bounds of the added latency, in milliseconds. The tail has room for the
// collector and for neighbours on a small machine.
const (
	boundP50 = 1.0
	boundP99 = 10.0
)

// Added is what a gateway adds to one kind of request.
type Added struct{ P50, P99 time.Duration }

// Suite is the gateway's part of "weir bench".
func Suite() bench.Suite {
	return bench.Suite{Name: "gateway", Short: "latency that the gateway adds to a fake engine's", Run: run}
}

func run(ctx context.Context, env bench.Env) ([]bench.Bar, error) {
	rig, err := newRig(ctx)
	if err != nil {
		return nil, err
	}
	defer rig.close()
	var bars []bench.Bar
	for _, kind := range []struct {
		name   string
		stream bool
	}{{"whole", false}, {"first_event", true}} {
		added, err := rig.measure(ctx, kind.stream, Requests)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(env.Out, "%s: +%v at the median, +%v at the 99th percentile of %d requests\n", kind.name, added.P50, added.P99, Requests)
		bars = append(bars,
			bench.Bar{Name: "gateway.added." + kind.name + ".p50", Measured: ms(added.P50), Unit: "ms", Want: bench.AtMost, Bound: boundP50},
			bench.Bar{Name: "gateway.added." + kind.name + ".p99", Measured: ms(added.P99), Unit: "ms", Want: bench.AtMost, Bound: boundP99})
	}
	return bars, nil
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// rig is a fake engine with and without a gateway before it.
type rig struct {
	engine, gateway string // URLs
	key             string
	client          *http.Client
	stops           []func()
}

func (r *rig) close() {
	for _, stop := range slices.Backward(r.stops) {
		stop()
	}
}

type directory struct{ index *tenants.Index }

func (d directory) Index() *tenants.Index { return d.index }

const model = "fake"

func newRig(ctx context.Context) (r *rig, err error) {
	r = &rig{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	r.stops = append(r.stops, r.client.CloseIdleConnections)
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.engine, err = r.serve(fake.New(fake.Options{Model: model})); err != nil {
		return nil, err
	}
	index, err := r.mint()
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil)) // lines are written, as in production
	upstream := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	r.stops = append(r.stops, upstream.CloseIdleConnections)
	p, err := pool.New(pool.Options{Members: []pool.Member{{Name: "fake", URL: r.engine, Model: model}}, Client: upstream, Log: log})
	if err != nil {
		return nil, err
	}
	r.background(func(ctx context.Context) { p.Run(ctx) })
	tel, err := telemetry.New(ctx, telemetry.Options{Role: "cloud", Name: "bench"})
	if err != nil {
		return nil, err
	}
	r.stops = append(r.stops, func() { _ = tel.Shutdown() })
	g, err := gateway.New(gateway.Options{Directory: directory{index}, Recorder: gateway.AtEnd(func(tenants.UsageRecord) {}), Pool: p, Client: upstream, Telemetry: tel, Log: log,
		Models: map[string]gateway.Model{model: {Pool: model, Named: true}}})
	if err != nil {
		return nil, err
	}
	if r.gateway, err = r.serve(g); err != nil {
		return nil, err
	}
	return r, r.awaitReady(ctx, p)
}

func (r *rig) mint() (*tenants.Index, error) {
	const tenant = "00000000-0000-4000-8000-000000000001"
	k, err := tenants.MintKey()
	if err != nil {
		return nil, err
	}
	r.key = k.Reveal()
	return tenants.NewIndex(&tenants.Snapshot{Version: 1, ExpiresAt: time.Now().Add(time.Hour),
		Tenants: []tenants.Tenant{{ID: tenant, Name: "bench", State: tenants.Active}},
		Keys: []tenants.KeyInfo{{ID: k.ID, TenantID: tenant, State: tenants.Active,
			Hashes: []tenants.SecretHash{{SHA256: tenants.HashSecret(k.Secret)}}}}})
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

func (r *rig) awaitReady(ctx context.Context, p *pool.Pool) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !p.Status()[0].Ready {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// measure sends n requests each way, in turn, after a warm-up.
func (r *rig) measure(ctx context.Context, stream bool, n int) (Added, error) {
	body := fmt.Appendf(nil, `{"model":%q,"stream":%t,"max_tokens":16,"messages":[{"role":"user","content":"turn on the light in the kitchen"}]}`, model, stream)
	direct, through := make([]time.Duration, 0, n), make([]time.Duration, 0, n)
	for i := range n + n/10 {
		d, err := r.one(ctx, r.engine, body, stream)
		if err != nil {
			return Added{}, fmt.Errorf("direct: %w", err)
		}
		g, err := r.one(ctx, r.gateway, body, stream)
		if err != nil {
			return Added{}, fmt.Errorf("through the gateway: %w", err)
		}
		if i >= n/10 {
			direct, through = append(direct, d), append(through, g)
		}
	}
	slices.Sort(direct)
	slices.Sort(through)
	return Added{P50: at(through, 0.50) - at(direct, 0.50), P99: at(through, 0.99) - at(direct, 0.99)}, nil
}

func at(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// one sends a request and returns the time to its first bytes (a stream) or to
// its end.
func (r *rig) one(ctx context.Context, url string, body []byte, stream bool) (time.Duration, error) {
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
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d", resp.StatusCode)
	}
	var took time.Duration
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
