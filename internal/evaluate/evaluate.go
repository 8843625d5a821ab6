// Package evaluate is the command "weir eval": the bundled models' held-out
// prompts through a running system, in each mode, scored by exact match.
package evaluate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/models/heldout"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/client"
)

// modes are run for each prompt, in this order, so that a slow minute of the
// machine hits all three alike.
var modes = []string{"edge-only", "cloud-only", "auto"}

// outcome is what one mode did with one prompt.
type outcome struct {
	correct, escalated bool
	confidence         float64 // of the edge; NaN-free: -1 when unknown
	ttft, total        time.Duration
}

// row is one prompt's outcomes, in the order of modes.
type row [3]outcome

const (
	edgeOnly = iota
	cloudOnly
	auto
)

// collect asks every prompt in every mode, concurrency prompts at a time. It
// stops at the first error: a half-answered set has no accuracy.
func collect(ctx context.Context, c *client.Client, lines []models.Example, concurrency int, progress func(done int)) ([]row, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	rows := make([]row, len(lines))
	next := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for range concurrency {
		wg.Go(func() {
			for i := range next {
				if err := ask(ctx, c, lines[i], &rows[i]); err != nil {
					cancel(fmt.Errorf("prompt %d: %w", i+1, err))
					continue
				}
				mu.Lock()
				done++
				progress(done)
				mu.Unlock()
			}
		})
	}
	for i := range lines {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return rows, context.Cause(ctx)
}

// askTimeout bounds one answer; the bundled models need milliseconds.
const askTimeout = 60 * time.Second

func ask(ctx context.Context, c *client.Client, line models.Example, out *row) error {
	for m, mode := range modes {
		one, cancel := context.WithTimeout(ctx, askTimeout)
		a, err := c.Chat(one, client.Request{Prompt: line.Prompt, Mode: mode}, nil)
		cancel()
		if err != nil {
			return fmt.Errorf("mode %s: %w", mode, err)
		}
		o := outcome{correct: a.Text == line.Answer, escalated: a.Weir.Tier == "cloud", confidence: -1, ttft: a.TTFT, total: a.Total}
		if a.Weir.Confidence != nil {
			o.confidence = *a.Weir.Confidence
		}
		if mode == "edge-only" && o.escalated || mode == "cloud-only" && !o.escalated {
			return fmt.Errorf("mode %s was answered by tier %q", mode, a.Weir.Tier)
		}
		out[m] = o
	}
	return nil
}

// Run evaluates n prompts (0 is all) against the system of a ready file.
func Run(ctx context.Context, ready client.Ready, n, concurrency int, progress func(done, of int)) (*Report, error) {
	lines, err := heldout.Test()
	if err != nil {
		return nil, err
	}
	if n < 0 || n > len(lines) {
		return nil, cli.Usagef("--n %d: the held-out set has %d prompts", n, len(lines))
	}
	if n > 0 {
		lines = spread(lines, n)
	}
	if len(lines) == 0 {
		return nil, errors.New("the held-out set is empty")
	}
	shuffle(lines)
	c := &client.Client{URL: ready.EdgeURL, Key: ready.AppKey, HTTP: &http.Client{}}
	rows, err := collect(ctx, c, lines, concurrency, func(done int) { progress(done, len(lines)) })
	if err != nil {
		return nil, err
	}
	return report(lines, rows), nil
}

// shuffle puts the lines into a random order, always the same. The set is
// sorted by task, and a target rate is held in every window: of a hard task it
// would let over too little, of an easy one too much.
func shuffle(lines []models.Example) {
	rng := rand.New(rand.NewPCG(20, 26))
	rng.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
}

// spread takes n lines at even distances: the set is sorted by task.
func spread(lines []models.Example, n int) []models.Example {
	out := make([]models.Example, n)
	for i := range out {
		out[i] = lines[i*len(lines)/n]
	}
	return out
}
