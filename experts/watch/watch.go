package watch

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/experts/format"
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/experts/rebalance"
)

// Options are what a Watcher needs. Replicas share one placement.
type Options struct {
	Replicas []Replica
	Client   *http.Client // nil for one with timeouts
	Key      string       // SGLang admin key, "" for none
	Fleet    func(experts int) (plan.Fleet, error)
	Start    func(l format.Loads, f plan.Fleet) (plan.Placement, error) // in force now; nil for trivial
	TopK     int
	Config   rebalance.Config
	Window   time.Duration // how long a recording runs
	Interval time.Duration // from the end of one recording to the next

	Audit        bool          // decide and log, change nothing
	PlanFile     string        // what the replicas start with
	Hidden       int           // hidden layers of the model, 0 for as many as rows
	Hook         []string      // program and arguments; replica URL and plan file are appended
	ReadyTimeout time.Duration // for a replica to come back
	Poll         time.Duration // how often files and health are looked at
	Log          *slog.Logger
}

// Watcher runs cycles of recording and deciding. It is used from one
// goroutine.
type Watcher struct {
	o       Options
	clients []client
	loop    *rebalance.Loop
	audited rebalance.State // of audit mode, which has no loop
	started bool
}

// New checks the options.
func New(o Options) (*Watcher, error) {
	if len(o.Replicas) == 0 || o.Fleet == nil || o.Log == nil || o.TopK < 1 || o.Window < 0 || o.Interval < 0 {
		return nil, fmt.Errorf("%w: replicas, fleet, log, top-k or times are missing", ErrOptions)
	}
	if !o.Audit && (o.PlanFile == "" || len(o.Hook) == 0) {
		return nil, fmt.Errorf("%w: a plan file and a hook are needed unless only auditing", ErrOptions)
	}
	if o.Client == nil {
		o.Client = &http.Client{Timeout: 30 * time.Second,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if o.Poll <= 0 {
		o.Poll = 500 * time.Millisecond
	}
	if o.ReadyTimeout <= 0 {
		o.ReadyTimeout = 30 * time.Minute
	}
	w := &Watcher{o: o}
	for _, r := range o.Replicas {
		u, err := url.Parse(r.URL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("%w: a replica is not an http or https URL", ErrOptions)
		}
		if err := checkDir(r.Dir); err != nil {
			return nil, err
		}
		w.clients = append(w.clients, client{o.Client, r, o.Key, o.Poll})
	}
	return w, nil
}

// Report is what one cycle found and did.
type Report struct {
	Decision rebalance.Decision
	// Reported is the mean of the replicas' own sglang:eplb_balancedness, 0
	// where none exports it. It averages over other windows than ours.
	Reported float64
	Window   load.Window
}

// Cycle records one window on all replicas, decides, and acts unless auditing.
func (w *Watcher) Cycle(ctx context.Context) (Report, error) {
	loads, err := w.record(ctx)
	if err != nil {
		return Report{}, err
	}
	if !w.started {
		if err := w.start(loads); err != nil {
			return Report{}, err
		}
	}
	rep := Report{Window: w.window(loads), Reported: w.reported(ctx)}
	obs := rebalance.Observation{Window: rep.Window}
	if !w.o.Audit {
		rep.Decision, err = w.loop.Observe(ctx, obs)
		return rep, err
	}
	next, d := rebalance.Decide(w.o.Config, w.audited, obs)
	if d.Action == rebalance.Stay {
		w.audited = next
	}
	rep.Decision = d
	w.o.Log.Info("expert placement audit", "would", string(d.Action), "reason", string(d.Reason), "imbalance", d.Now,
		"imbalance_max", d.Worst, "target", d.Target, "bound", d.Bound, "transfers", d.Transfers, "reported_balancedness", rep.Reported)
	return rep, nil
}

// Run cycles until ctx ends. Failed cycles are logged and tried again after
// the interval.
func (w *Watcher) Run(ctx context.Context) error {
	for {
		if _, err := w.Cycle(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			w.o.Log.Warn("expert watch cycle failed", "error", err.Error())
		}
		if wait(ctx, w.o.Interval) != nil {
			return nil
		}
	}
}

// record runs the recorders of all replicas at the same time and adds up.
func (w *Watcher) record(ctx context.Context) (format.Loads, error) {
	all := make([]format.Loads, len(w.clients))
	g, gctx := errgroup.WithContext(ctx)
	for i, c := range w.clients {
		g.Go(func() (err error) {
			all[i], err = c.record(gctx, w.o.Window)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return format.Loads{}, err
	}
	sum := all[0]
	for _, l := range all[1:] {
		if err := sum.Counts.AddScaled(l.Counts, 1); err != nil {
			return format.Loads{}, fmt.Errorf("replicas serve different models: %w", err)
		}
	}
	return sum, nil
}

// start learns the model's shape from the first recording.
func (w *Watcher) start(l format.Loads) error {
	fleet, err := w.o.Fleet(l.Counts.Experts())
	if err != nil {
		return err
	}
	p := plan.Trivial(len(l.Counts), l.Counts.Experts(), fleet)
	if w.o.Start != nil {
		if p, err = w.o.Start(l, fleet); err != nil {
			return err
		}
	}
	w.audited = rebalance.NewState(p)
	w.loop = rebalance.NewLoop(w.o.Config, p, &mover{w.o, w.clients, l.Layers}, w.o.Log)
	w.started = true
	return nil
}

func (w *Watcher) window(l format.Loads) load.Window {
	win := load.Window{TopK: w.o.TopK, Demand: l.Counts, Served: l.Counts}
	for _, row := range l.Counts {
		win.Tokens = max(win.Tokens, int64(load.Sum(row))/int64(w.o.TopK))
	}
	return win
}

// reported is a hint beside our own figure, so a failed scrape is not an
// error.
func (w *Watcher) reported(ctx context.Context) float64 {
	sum, n := 0.0, 0.0
	for _, c := range w.clients {
		v, ok, err := c.balancedness(ctx)
		if err != nil {
			w.o.Log.Debug("no metrics", "replica", c.host(), "error", err.Error())
			continue
		}
		if ok {
			sum, n = sum+v, n+1
		}
	}
	if n == 0 {
		return 0
	}
	return sum / n
}
