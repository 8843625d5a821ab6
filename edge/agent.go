package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/bundled"
	"github.com/weirhq/weir/edge/foresight"
	"github.com/weirhq/weir/edge/identity"
	"github.com/weirhq/weir/edge/learning"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/edge/policies"
	"github.com/weirhq/weir/edge/report"
	"github.com/weirhq/weir/edge/roster"
	"github.com/weirhq/weir/edge/supervise"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/telemetry"
)

// Options are what Run takes beside the configuration.
type Options struct {
	Log *slog.Logger
	// WorkerOutput receives the worker's output; nil discards it.
	WorkerOutput *os.File
	// Executable is the weir binary; "" is the running one.
	Executable string
	// Spans, when set, receives ended spans: tests use it.
	Spans sdktrace.SpanProcessor
}

// agent is a running edge node.
type agent struct {
	cfg Config
	log *slog.Logger
	tel *telemetry.Telemetry

	id     *identity.Identity
	worker *supervise.Worker
	link   watchedLink
	roster *roster.Roster
	report *report.Reporter
	api    *local.Server
	past   *decisionLog
	rules  *policies.Set
	ahead  *foresight.Foresight

	embedder *foresight.Embedder // nil for none

	phase atomic.Value // string: "joining", "serving" or "draining"
	began time.Time    // of serving; set before phase is
}

// Run joins if need be and serves until ctx ends, then drains. The error says
// what the operator must change.
func Run(ctx context.Context, cfg Config, opt Options) error {
	tel, err := telemetry.New(ctx, telemetry.Options{Role: "edge", Name: "edge", Endpoint: cfg.OTLPEndpoint, Processor: opt.Spans})
	if err != nil {
		return err
	}
	defer func() {
		if err := tel.Shutdown(); err != nil {
			opt.Log.Warn("telemetry was not sent in full", "err", err)
		}
	}()
	a := &agent{cfg: cfg, log: opt.Log, tel: tel}
	a.phase.Store("joining")
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer listener.Close()
	stopOps, err := a.serveOps()
	if err != nil {
		return err
	}
	defer stopOps()
	if err := a.assemble(ctx, opt); err != nil {
		return err
	}
	defer a.past.close()
	return a.serve(ctx, listener)
}

// assemble makes the parts; none runs yet.
func (a *agent) assemble(ctx context.Context, opt Options) error {
	var err error
	if a.worker, err = newWorker(a.cfg, opt, a.log); err != nil {
		return err
	}
	if a.id, err = a.join(ctx); err != nil {
		return err
	}
	if a.roster, err = roster.Open(a.cfg.snapshotFile(), a.id.TenantID, a.id.SnapshotKey, a.log); err != nil {
		return err
	}
	tlsConfig, err := a.id.TLS()
	if err != nil {
		return err
	}
	clouds := a.cfg.clouds()
	if len(clouds) == 0 {
		clouds = []string{a.id.CloudURL}
	}
	a.link.Group, err = uplink.NewGroup(clouds, uplink.Options{
		TLS: tlsConfig, DisableUDP: a.cfg.UDP == "off", ProbeEvery: a.cfg.UDPProbe,
		PingPath: roster.PathSnapshot, PingHeader: a.roster.Conditional, Log: a.log,
	})
	if err != nil {
		return err
	}
	if a.report, err = report.New(report.Options{Cloud: a.link.Group, Dir: a.cfg.usageDir(), Log: a.log}); err != nil {
		return err
	}
	cal, policy, err := decision(a.cfg)
	if err != nil {
		return err
	}
	if err := a.makeLearner(cal, policy); err != nil {
		return err
	}
	if err := a.makeAPI(cal, policy); err != nil {
		a.past.close()
		return err
	}
	return nil
}

// makeLearner makes what moves with the node's traffic: the controllers of the
// tenant's policies and what is learned from labels. Damaged controllers begin anew.
func (a *agent) makeLearner(cal *cascade.Calibration, policy cascade.Policy) (err error) {
	a.rules = policies.New(policy, cal, a.log)
	if err := a.rules.Restore(a.cfg.controllersFile()); err != nil {
		a.log.Error("controllers of the tenant's policies begin anew", "err", err)
	}
	a.past, err = openDecisions(learning.Options{
		Dir: a.cfg.decisionsDir(), Calibration: cal, Rules: a.rules, Idle: a.link.idle, Logger: a.log,
		Shadow: learning.Limits{PerHour: a.cfg.ShadowPerHour, PerDay: int64(a.cfg.ShadowPerDayUSD * 1e9)},
	})
	if err != nil {
		return err
	}
	if err = a.tel.Registry.Register(a.past.learner); err != nil {
		a.past.close()
	}
	return err
}

func (a *agent) makeAPI(cal *cascade.Calibration, policy cascade.Policy) (err error) {
	if a.embedder, err = foresight.NewEmbedder(a.cfg.Embedder, a.tel.Registry); err != nil {
		return err
	}
	a.ahead, err = foresight.Open(foresight.Options{Dir: a.cfg.foresightDir(), Embedder: a.embedder, Log: a.log})
	if err != nil {
		return err
	}
	a.api, err = local.New(local.Options{
		Model: a.cfg.modelName(), CloudModels: a.cfg.CloudModels,
		TenantID: a.id.TenantID, DeviceID: a.id.DeviceID,
		AllowAnonymous: a.cfg.AllowAnonymous, AllowedHosts: a.cfg.AllowedHosts, AllowedOrigins: a.cfg.AllowedOrigins,
		Calibration: cal, Policy: policy, Decisions: a.past, Learner: a.past.learner, Rules: a.rules, Foresight: a.ahead,
		FirstByte: a.cfg.FirstByte, Stall: a.cfg.Stall, Heartbeat: a.cfg.Heartbeat,
		MaxInflight: a.cfg.MaxInflight, MaxLocal: a.cfg.MaxLocal,
		Cloud: &a.link, Worker: a.worker, Roster: a.roster, Recorder: a.report,
		Generator: &upstream.Worker{
			HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: a.cfg.MaxLocal, IdleConnTimeout: time.Minute}},
			URL:  a.worker.URL(), FirstByte: a.cfg.FirstByte, Stall: a.cfg.Stall,
		},
		Telemetry: a.tel, Log: a.log,
	})
	return err
}

// decision returns the calibration and policy of the configured model. A model
// without a calibration cannot be judged; its answers are let over.
func decision(cfg Config) (*cascade.Calibration, cascade.Policy, error) {
	var cal *cascade.Calibration
	switch {
	case cfg.Calibration != "":
		raw, err := os.ReadFile(cfg.Calibration)
		if err != nil {
			return nil, cascade.Policy{}, fmt.Errorf("calibration: %w", err)
		}
		c, err := cascade.ParseCalibration(raw)
		if err != nil {
			return nil, cascade.Policy{}, fmt.Errorf("%s: %w", cfg.Calibration, err)
		}
		cal = &c
	case cfg.Model == "hub-edge":
		c, err := bundled.HubEdge()
		if err != nil {
			return nil, cascade.Policy{}, err
		}
		cal = &c
	}
	threshold := cfg.Threshold
	if threshold < 0 {
		threshold = .5
		if cal != nil {
			threshold = cal.Threshold
		}
	}
	return cal, cascade.ThresholdPolicy(threshold), nil
}

const (
	exchangeEvery = 5 * time.Minute // of what was learned with the tenant's other devices
	keepEvery     = 2 * time.Second // the controllers' file, when they have moved
	foreseeEvery  = 5 * time.Minute // what prompts tell, which may be 20 MB
)

const workerName = "edge-worker"

func newWorker(cfg Config, opt Options, log *slog.Logger) (*supervise.Worker, error) {
	if cfg.WorkerURL != "" {
		return supervise.New(supervise.Options{URL: cfg.WorkerURL, Log: log}), nil
	}
	exe := opt.Executable
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find the weir binary: %w", err)
		}
	}
	args := []string{"worker", "--model", cfg.Model, "--role", "mixed", "--listen", cfg.WorkerListen, "--name", workerName,
		"--drain", cfg.Drain.String()}
	if cfg.WorkerThreads > 0 {
		args = append(args, "--threads", strconv.Itoa(cfg.WorkerThreads))
	}
	if cfg.Lib != "" {
		args = append(args, "--lib", cfg.Lib)
	}
	spec := proc.Spec{Name: "worker", Path: exe, Args: args}
	if opt.WorkerOutput != nil {
		spec.Output = opt.WorkerOutput
	}
	return supervise.New(supervise.Options{
		URL: "http://" + cfg.WorkerListen, Name: workerName, Spec: spec, Grace: cfg.Drain, Log: log,
	}), nil
}

// serve runs the parts and the API until ctx ends or a part cannot go on. It
// stops them in the order in which they need each other.
func (a *agent) serve(ctx context.Context, listener net.Listener) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	lower := newStage(ctx, fail) // outlives the API and the reports
	lower.run(a.link.Run)
	lower.run(a.worker.Run)
	upper := newStage(ctx, fail)
	upper.run(a.report.Run)
	upper.run(func(ctx context.Context) error { return a.roster.Run(ctx, a.link.Group, a.cfg.SnapshotPoll) })
	upper.run(a.past.learner.Run)
	upper.run(a.api.Forward)
	upper.run(func(ctx context.Context) error {
		return a.past.learner.Exchange(ctx, learning.Peer{Cloud: a.link.Group, Tenant: a.id.TenantID, Key: a.id.SnapshotKey}, exchangeEvery)
	})
	upper.run(func(ctx context.Context) error { return a.rules.Keep(ctx, a.cfg.controllersFile(), keepEvery) })
	upper.run(func(ctx context.Context) error { return a.ahead.Keep(ctx, foreseeEvery) })
	defer a.embedder.Close()
	lower.run(a.checkCalibration)

	srv := &http.Server{
		Handler: a.api.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	a.began = time.Now()
	a.phase.Store("serving")
	a.log.Info("edge node serves", "url", "http://"+listener.Addr().String(), "device", a.id.DeviceID, "tenant", a.id.TenantID, "cloud", a.id.CloudURL)
	var err error
	select {
	case <-ctx.Done():
		err = context.Cause(ctx)
	case err = <-served:
		fail(err)
	}
	a.drain(srv)
	upper.stop()
	lower.stop()
	a.log.Info("edge node stopped")
	if errors.Is(err, context.Canceled) || errors.Is(err, proc.ErrParentGone) {
		return nil
	}
	return err
}

func (a *agent) drain(srv *http.Server) {
	a.phase.Store("draining")
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.Drain)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		_ = srv.Close() // cuts what is left after the time to drain
	}
}

// checkCalibration warns once when the model that runs is not the calibrated
// one, because every answer of it is then let over to the cloud.
func (a *agent) checkCalibration(ctx context.Context) error {
	cal, _, err := decision(a.cfg)
	if err != nil {
		return err
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if h, ok := a.worker.Health(); ok {
			switch {
			case cal == nil:
				a.log.Warn("the local model has no calibration: its answers are let over to the cloud in mode auto", "model", h.Model)
			default:
				if err := cal.Bind(h.Fingerprint.Weights); err != nil {
					a.log.Warn("the calibration is not used", "err", err)
				}
			}
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// stage is a group of parts that stop together. A part that fails ends the
// agent.
type stage struct {
	ctx    context.Context
	cancel context.CancelFunc
	fail   context.CancelCauseFunc
	wg     sync.WaitGroup
}

// newStage makes a stage that does not end with ctx: stop ends it.
func newStage(ctx context.Context, fail context.CancelCauseFunc) *stage {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &stage{ctx: own, cancel: cancel, fail: fail}
}

func (s *stage) run(part func(context.Context) error) {
	s.wg.Go(func() {
		if err := part(s.ctx); err != nil {
			s.fail(err)
		}
	})
}

func (s *stage) stop() {
	s.cancel()
	s.wg.Wait()
}
