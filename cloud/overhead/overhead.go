// Package overhead measures what the gateway adds to a request: the same
// requests go in turn to a fake engine directly and through a gateway before
// it, and percentiles of both are subtracted.
package overhead

import (
	"context"
	"fmt"
	"time"

	"github.com/weirhq/weir/cloud/benchrig"
	"github.com/weirhq/weir/internal/bench"
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
	r, err := newRig(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var bars []bench.Bar
	for _, kind := range []struct {
		name   string
		stream bool
	}{{"whole", false}, {"first_event", true}} {
		added, err := r.measure(ctx, kind.stream, Requests)
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
	*benchrig.Rig
	gateway string // URL
}

func newRig(ctx context.Context) (*rig, error) {
	r, err := benchrig.New()
	if err != nil {
		return nil, err
	}
	url, err := r.Bare(ctx)
	if err != nil {
		r.Close()
		return nil, err
	}
	return &rig{r, url}, nil
}

// measure sends n requests each way.
func (r *rig) measure(ctx context.Context, stream bool, n int) (Added, error) {
	direct, through, err := r.InTurn(ctx, r.Engine, r.gateway, stream, n)
	if err != nil {
		return Added{}, err
	}
	return Added{P50: at(through, 0.50) - at(direct, 0.50), P99: at(through, 0.99) - at(direct, 0.99)}, nil
}

func at(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
