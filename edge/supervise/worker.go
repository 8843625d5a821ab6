// Package supervise keeps the model server of an edge node: its own "weir
// worker" child process, restarted when it ends or hangs, or a server that is
// there already. A node's other parts see whether it can answer and what it is.
package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/internal/proc"
)

// Health is what a worker says of itself at GET /health.
type Health struct {
	Status      string             `json:"status"`
	Name        string             `json:"name"`
	Epoch       string             `json:"epoch"`
	Model       string             `json:"model"`
	Fingerprint engine.Fingerprint `json:"fingerprint"`
	Context     int                `json:"context"`
	MaxSeqs     int                `json:"max_seqs"`
}

// Options configure a Worker. Zero durations take the defaults named.
type Options struct {
	URL string // "http://127.0.0.1:7426"
	// Spec starts the child. A zero Path means that the server at URL is
	// somebody else's process.
	Spec proc.Spec
	// Name must be the health answer's name: another process on the port is
	// not our worker. Empty accepts any.
	Name       string
	Grace      time.Duration // for the child to drain: 5 s
	PollStart  time.Duration // between health checks until it is ready: 100 ms
	PollReady  time.Duration // and after: 1 s
	HangAfter  time.Duration // without an answer, after which a child that was ready is killed: 10 s
	HTTPClient *http.Client
	Log        *slog.Logger
}

// Worker watches one model server. Ready and Health are safe for concurrent
// use.
type Worker struct {
	opt    Options
	sup    *proc.Supervisor // nil for somebody else's server
	health atomic.Pointer[known]
	kick   chan struct{}
}

type known struct {
	Health
	child *proc.Child
}

// New returns a Worker. Run starts it.
func New(opt Options) *Worker {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&opt.Grace, 5 * time.Second}, {&opt.PollStart, 100 * time.Millisecond}, {&opt.PollReady, time.Second}, {&opt.HangAfter, 10 * time.Second}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	if opt.HTTPClient == nil {
		opt.HTTPClient = &http.Client{Timeout: 2 * time.Second}
	}
	w := &Worker{opt: opt, kick: make(chan struct{}, 1)}
	if opt.Spec.Path != "" {
		w.sup = &proc.Supervisor{Spec: opt.Spec, Backoff: proc.DefaultBackoff, Grace: opt.Grace, Log: opt.Log}
	}
	return w
}

// URL is where the server listens.
func (w *Worker) URL() string { return w.opt.URL }

// Ready reports whether the server can answer now.
func (w *Worker) Ready() bool {
	k := w.health.Load()
	return k != nil && (w.sup == nil || w.sup.Child() == k.child)
}

// Health returns the last good health answer; ok is Ready.
func (w *Worker) Health() (h Health, ok bool) {
	k := w.health.Load()
	if k == nil {
		return Health{}, false
	}
	return k.Health, w.sup == nil || w.sup.Child() == k.child
}

// Suspect asks for a health check now, after a request has failed.
func (w *Worker) Suspect() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// Run keeps the child running and its health known until ctx ends; then it
// stops the child. The error says that the child could not be started at all.
func (w *Worker) Run(ctx context.Context) error {
	if w.sup == nil {
		w.watch(ctx)
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		w.watch(ctx)
	}()
	err := w.sup.Run(ctx)
	cancel()
	<-watched
	return err
}

func (w *Worker) watch(ctx context.Context) {
	var proven *proc.Child // the child that was ready last
	var lastOK time.Time
	for ctx.Err() == nil {
		child := w.child()
		h, err := w.check(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := w.opt.PollStart
		switch {
		case err == nil:
			proven, lastOK, wait = child, time.Now(), w.opt.PollReady
			w.store(h, child)
		case child != nil && child == proven && time.Since(lastOK) > w.opt.HangAfter:
			w.drop(err)
			w.opt.Log.Error("worker hangs, killing it", "url", w.opt.URL, "silent", time.Since(lastOK).Round(time.Second))
			child.Kill()
			proven = nil
		default:
			w.drop(err)
		}
		w.pause(ctx, wait)
	}
}

func (w *Worker) store(h Health, child *proc.Child) {
	if old := w.health.Load(); old == nil || old.Epoch != h.Epoch || old.child != child {
		w.opt.Log.Info("worker is ready", "url", w.opt.URL, "model", h.Model, "epoch", h.Epoch)
	}
	w.health.Store(&known{h, child})
}

func (w *Worker) drop(err error) {
	if w.health.Swap(nil) != nil {
		w.opt.Log.Warn("worker is not ready", "url", w.opt.URL, "err", err)
	}
}

func (w *Worker) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.kick:
	case <-ctx.Done():
	}
}

func (w *Worker) child() *proc.Child {
	if w.sup == nil {
		return nil
	}
	return w.sup.Child()
}

func (w *Worker) check(ctx context.Context) (Health, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.opt.URL+"/health", nil)
	if err != nil {
		return Health{}, err
	}
	resp, err := w.opt.HTTPClient.Do(req)
	if err != nil {
		return Health{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return Health{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return Health{}, fmt.Errorf("health check answered %s", resp.Status)
	}
	var h Health
	if len(body) > 0 { // vLLM answers 200 with nothing
		if err := json.Unmarshal(body, &h); err != nil {
			return Health{}, fmt.Errorf("health answer: %w", err)
		}
	}
	if w.opt.Name != "" && h.Name != w.opt.Name {
		return Health{}, fmt.Errorf("the server at %s is %q, not our worker %q: is the port taken?", w.opt.URL, h.Name, w.opt.Name)
	}
	return h, nil
}
