package poolbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/internal/bench"
	"github.com/weirhq/weir/internal/pki"
)

const (
	streams      = 4                // that generate all the time
	longChars    = 600              // of the prompts that arrive meanwhile, one after the other: a token each
	measured     = 20 * time.Second // of each way
	idleAsks     = 9                // on idle pools
	idleChars    = 300
	streamTokens = 1900
)

// splitAgainstMixed runs two workers, each on one core, first as mixed ones and
// then as prefill and decode, under the same load: streams that generate, and
// long prompts that arrive meanwhile. The generating streams' p99 time between
// tokens is what prompts do to others; the prompts' own first token is what the
// split costs them.
func splitAgainstMixed(ctx context.Context, env bench.Env, path, lib string) ([]bench.Bar, error) {
	a, err := pki.OpenAuthority(filepath.Join(env.Dir, "split"))
	if err != nil {
		return nil, err
	}
	certs := filepath.Join(env.Dir, "split-worker")
	if err := a.IssueTo(certs, pki.Spec{Peer: pki.Peer{Role: pki.RoleWorker, Name: "bench"}, Hosts: pki.LoopbackHosts()}); err != nil {
		return nil, err
	}
	run := func(roles ...string) (load, error) {
		var out load
		var ws []*process
		defer func() {
			for _, w := range ws {
				w.stop()
			}
		}()
		for core, role := range roles {
			w, err := begin(ctx, core, role, path, lib, certs)
			if err != nil {
				return out, err
			}
			ws = append(ws, w)
		}
		p := pool{ws[0], ws[1], roles[0] == "prefill"}
		out.idle, err = p.idle(ctx)
		if err != nil {
			return out, err
		}
		out.gaps, out.first, err = p.busy(ctx)
		return out, err
	}
	mixed, err := run("mixed", "mixed")
	if err != nil {
		return nil, fmt.Errorf("mixed workers: %w", err)
	}
	split, err := run("prefill", "decode")
	if err != nil {
		return nil, fmt.Errorf("prefill and decode workers: %w", err)
	}
	for i, l := range []load{mixed, split} {
		name := []string{"mixed", "prefill/decode"}[i]
		fmt.Fprintf(env.Out, "%-14s: p50 %.1f, p99 %.1f ms between tokens; prompts of %d tokens answer after %.0f ms; idle, %d tokens after %.1f ms\n",
			name, quantile(l.gaps, 0.5), quantile(l.gaps, 0.99), longChars, median(l.first), idleChars, median(l.idle))
	}
	return []bench.Bar{
		{Name: "pools.split_itl_p99_over_mixed", Measured: quantile(split.gaps, 0.99) / quantile(mixed.gaps, 0.99), Want: bench.AtMost, Bound: mostITL},
		{Name: "pools.split_added_ttft", Measured: median(split.idle) - median(mixed.idle), Unit: "ms"},
	}, nil
}

// load is what was measured, in milliseconds.
type load struct{ idle, gaps, first []float64 }

func quantile(x []float64, q float64) float64 {
	slices.Sort(x)
	return x[int(q*float64(len(x)-1))]
}

// pool is two workers: prefill and decode, or two mixed ones.
type pool struct {
	a, b  *process
	split bool
}

// prompt makes a prompt of n characters that begins like no other.
func prompt(serial, n int) string {
	return fmt.Sprintf("%06d", serial) + strings.Repeat("abcdefgh", n/8+1)[:n-6]
}

// idle asks one request after the other and gives each one's time to the first
// token.
func (p pool) idle(ctx context.Context) ([]float64, error) {
	var out []float64
	for i := range idleAsks {
		ms, err := p.long(ctx, p.b, 1000+i, idleChars)
		if err != nil {
			return nil, err
		}
		if i > 0 { // the first one connects
			out = append(out, ms)
		}
	}
	return out, nil
}

// long asks for a few tokens after a prompt and gives the time to the first.
func (p pool) long(ctx context.Context, at *process, serial, chars int) (float64, error) {
	began := time.Now()
	body := map[string]any{"model": modelName, "prompt": prompt(serial, chars), "max_tokens": 4, "ignore_eos": true, "temperature": 0}
	if p.split {
		kv, err := p.a.prefill(ctx, fmt.Sprint(serial), body)
		if err != nil {
			return 0, err
		}
		body["kv_transfer_params"] = kv
		at = p.b
	}
	first := time.Time{}
	err := at.stream(ctx, fmt.Sprint(serial), body, func(now time.Time) {
		if first.IsZero() {
			first = now
		}
	})
	return float64(first.Sub(began).Microseconds()) / 1000, err
}

// busy lets streams generate while long prompts arrive. Mixed workers share
// both; a decode worker has all streams.
func (p pool) busy(ctx context.Context) (gaps, first []float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, measured)
	defer cancel()
	all := make([][]float64, streams)
	g, _ := errgroup.WithContext(context.Background())
	for i := range streams {
		at := p.b
		if !p.split && i%2 == 0 {
			at = p.a
		}
		g.Go(func() error { return generate(ctx, at, i, &all[i]) })
	}
	for i := 0; ctx.Err() == nil; i++ {
		at := p.b
		if i%2 == 0 {
			at = p.a
		}
		ms, err := p.long(ctx, at, i, longChars)
		if err == nil {
			first = append(first, ms)
		} else if ctx.Err() == nil {
			return nil, nil, errors.Join(err, g.Wait())
		}
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	for _, x := range all {
		gaps = append(gaps, x...)
	}
	if len(gaps) < 100 || len(first) == 0 {
		return nil, nil, fmt.Errorf("only %d tokens and %d prompts in %v: the machine is too busy", len(gaps), len(first), measured)
	}
	return gaps, first, nil
}

// generate streams one answer after another until ctx ends.
func generate(ctx context.Context, at *process, i int, gaps *[]float64) error {
	for ctx.Err() == nil {
		body := map[string]any{"model": modelName, "prompt": prompt(900000+i, 40), "max_tokens": streamTokens, "ignore_eos": true, "temperature": 0}
		var last time.Time
		err := at.stream(ctx, "", body, func(now time.Time) {
			if !last.IsZero() {
				*gaps = append(*gaps, float64(now.Sub(last).Microseconds())/1000)
			}
			last = now
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}
