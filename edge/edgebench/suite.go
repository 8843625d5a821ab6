// Package edgebench measures what the cascade adds to a request at an edge node:
// the same request, to the same local model that has its answer already, with
// the cascade on (mode auto) and off (edge-only), whole and streamed.
package edgebench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/bundled"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/edge/roster"
	"github.com/weirhq/weir/edge/supervise"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/internal/bench"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
)

// Suite is the part of "weir bench".
func Suite() bench.Suite {
	return bench.Suite{Name: "edge", Short: "what the cascade adds to a request at an edge node", Run: run}
}

// rounds is how many pairs of requests are compared.
const rounds = 3000

func run(ctx context.Context, env bench.Env) ([]bench.Bar, error) {
	node, err := newNode(ctx)
	if err != nil {
		return nil, err
	}
	var bars []bench.Bar
	for _, kind := range []struct{ name, body string }{{"whole", body(false)}, {"stream", body(true)}} {
		on, off, err := node.compare(ctx, kind.body)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind.name, err)
		}
		fmt.Fprintf(env.Out, "edge, %s: %.1f µs a request with the cascade, %.1f µs without\n", kind.name, micros(on), micros(off))
		bars = append(bars, bench.Bar{Name: "edge.overhead." + kind.name + ".p50", Measured: micros(on - off), Unit: "µs", Want: bench.AtMost, Bound: 200})
	}
	return bars, nil
}

func body(stream bool) string {
	return fmt.Sprintf(`{"model":"auto","messages":[{"role":"user","content":"turn on the kitchen light"}],"stream":%v}`, stream)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

type node struct{ api http.Handler }

// compare alternates both modes, so that whatever else the machine does falls
// on both, and returns the medians.
func (n *node) compare(ctx context.Context, body string) (on, off time.Duration, err error) {
	var times [2][]time.Duration
	for i := range rounds {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		for k, mode := range []string{"auto", "edge-only"} {
			took, err := n.ask(body, mode)
			if err != nil {
				return 0, 0, err
			}
			if i >= rounds/10 { // after the warm-up
				times[k] = append(times[k], took)
			}
		}
	}
	for k := range times {
		slices.Sort(times[k])
	}
	return times[0][len(times[0])/2], times[1][len(times[1])/2], nil
}

func (n *node) ask(body, mode string) (time.Duration, error) {
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Weir-Mode", mode)
	w := httptest.NewRecorder()
	start := time.Now()
	n.api.ServeHTTP(w, r)
	took := time.Since(start)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"tier":"edge"`) {
		return 0, fmt.Errorf("mode %s: status %d: %.200s", mode, w.Code, w.Body)
	}
	return took, nil
}

func newNode(ctx context.Context) (*node, error) {
	cal, err := bundled.HubEdge()
	if err != nil {
		return nil, err
	}
	tel, err := telemetry.New(ctx, telemetry.Options{Role: "edge", Name: "bench"})
	if err != nil {
		return nil, err
	}
	parts := still{cal.Fingerprint}
	srv, err := local.New(local.Options{
		Model: "hub-edge", CloudModels: []string{"hub-cloud"}, AllowAnonymous: true,
		Calibration: &cal, Policy: cascade.ThresholdPolicy(cal.Threshold),
		Cloud: parts, Worker: parts, Roster: parts, Recorder: parts,
		Generator: &upstream.Worker{HTTP: &http.Client{Transport: instant(answer())}, URL: "http://127.0.0.1", FirstByte: time.Minute, Stall: time.Minute},
		Telemetry: tel, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	return &node{srv.Handler()}, nil
}

// answer is the stream of a sure answer of 32 tokens.
func answer() string {
	var b strings.Builder
	for range 32 {
		b.WriteString(`data: {"id":"w","object":"chat.completion.chunk","created":1,"model":"hub-edge","choices":[{"index":0,"delta":{"content":"a"},` +
			`"logprobs":{"content":[{"token":"a","logprob":-0.0001,"bytes":[97],"top_logprobs":[]}],"refusal":null},"finish_reason":null}]}` + "\n\n")
	}
	b.WriteString(`data: {"id":"w","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n")
	return b.String()
}

// instant is a model server that has its answer already.
type instant string

func (i instant) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(i))), Request: r}, nil
}

// still are the parts of a node on which nothing happens: a worker that is
// ready, a cloud that is up and never asked.
type still struct{ weights string }

func (s still) Health() (supervise.Health, bool) {
	return supervise.Health{Model: "hub-edge", Fingerprint: engine.Fingerprint{Weights: s.weights}, Context: 2048}, true
}

func (still) Suspect() {}

func (still) View() *roster.View { return nil }

func (still) Record(tenants.UsageRecord) {}

func (still) Stats() uplink.Stats { return uplink.Stats{State: uplink.Up, RTT: time.Millisecond} }

func (still) Do(context.Context, uplink.Request) (*uplink.Response, error) {
	return nil, errors.New("the benchmark asks no cloud")
}
