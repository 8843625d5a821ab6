// Package worker is the process that serves one model: HTTP surface
// (engine/worker/api), step loop (engine/worker/loop) and KV hand-off
// (engine/worker/handoff) around an engine.Runner. A runner that panics in the
// loop or keeps failing is loaded anew, with growing pauses. A crash of llama.cpp
// itself, which runs in this process, ends the process; whoever started it starts
// it again.
package worker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/api"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/handoff"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/member"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/engine/worker/state"
	"github.com/weirhq/weir/internal/listen"
	"github.com/weirhq/weir/internal/loopback"
	"github.com/weirhq/weir/internal/pki"
)

// handoffTTL is how long a hand-off waits for its reader: vLLM's lease.
const handoffTTL = 30 * time.Second

// Options are what Run needs beside the configuration.
type Options struct {
	Config Config
	Log    *slog.Logger
	Tracer trace.Tracer // nil records nothing
	// Load gives the model. It runs while the worker already answers /health.
	Load func() (engine.Runner, error)
	// OnReady, when set, is told each time the worker begins to generate.
	OnReady func(Ready)
}

// Ready describes a worker that generates.
type Ready struct {
	Addr  net.Addr // of the API
	Epoch string
	Info  engine.Info
}

// instance is a running worker.
type instance struct {
	o      Options
	log    *slog.Logger
	id     api.Identity
	holder pki.Holder     // nil without a certificate
	member *member.Member // nil where the operator lists the worker
	trust  tlsPools
	tcp    net.Listener
	udp    net.PacketConn
	api    *api.Server
	http   *http.Server
	store  *handoff.Store
	cost   *cost.Model
	lost   chan time.Time // when the model was lost; it holds as many as there may be

	experts experts
}

type tlsPools struct{ http, kvServer, kvClient *tls.Config }

// Run serves until ctx ends and requests are drained. It returns an error when
// the worker cannot start or its model keeps failing.
func Run(ctx context.Context, o Options) error {
	w := &instance{o: o, log: o.Log, lost: make(chan time.Time, mostLost)}
	if path := o.Config.CostModel; path != "" {
		var err error
		if w.cost, err = cost.Read(path); err != nil {
			return err
		}
	}
	if err := w.listen(ctx); err != nil {
		return err
	}
	defer w.closeSockets()
	if o.Tracer == nil {
		w.o.Tracer = noop.NewTracerProvider().Tracer("")
	}
	w.api = api.New(w.id, w.log, w.o.Tracer)
	w.api.Handle("/instance/v1/experts", &w.experts)
	w.http = &http.Server{Handler: loopback.Guard(w.tcp.Addr(), w.api), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, TLSConfig: w.trust.http, ErrorLog: slog.NewLogLogger(w.log.Handler(), slog.LevelDebug)}
	served := make(chan error, 1)
	go func() { served <- w.serve() }()
	defer func() {
		_ = w.http.Close()
		<-served
	}()
	examined := make(chan struct{})
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() { defer close(examined); w.examine(own) }()
	defer func() { stop(); <-examined }()
	ctx, leftPools := w.stayMember(ctx)
	return errors.Join(w.live(ctx, served), leftPools())
}

// listen takes the sockets and reads or gets the certificates, so that what an
// operator got wrong ends the process before a model is loaded.
func (w *instance) listen(ctx context.Context) error {
	c := &w.o.Config
	if c.TLSCert != "" {
		if err := w.readCertificates(); err != nil {
			return err
		}
	}
	var err error
	if c.certificates() { // KV hand-offs are over UDP
		w.tcp, w.udp, err = listen.Both(c.Listen)
	} else {
		w.tcp, err = net.Listen("tcp", c.Listen)
	}
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	host, _, _ := net.SplitHostPort(c.Listen) // Validate has checked it
	w.id = api.Identity{Name: c.Name, Epoch: uuid.NewString(), Role: c.Role}
	if w.id.Name == "" {
		w.id.Name = c.Role + "-" + strconv.Itoa(w.tcp.Addr().(*net.TCPAddr).Port)
	}
	if len(c.Join) > 0 {
		if err := w.join(ctx); err != nil {
			w.closeSockets()
			return err
		}
	}
	if !loopback.Host(host) {
		w.trust.http = pki.MutualConfig(w.holder, w.trust.kvServer.ClientCAs, pki.RoleGateway)
	}
	return nil
}

// listenKV takes the UDP port of the same number as the API's again, unless it
// has it.
func (w *instance) listenKV() error {
	if w.udp != nil {
		return nil
	}
	var err error
	if w.udp, err = net.ListenPacket("udp", w.tcp.Addr().String()); err != nil {
		return fmt.Errorf("cannot listen for KV hand-offs: %w", err)
	}
	return nil
}

func (w *instance) readCertificates() error {
	c := &w.o.Config
	own, err := pki.LoadStatic(c.TLSCert, c.TLSKey)
	if err != nil {
		return err
	}
	pool, err := pki.LoadPool(c.TLSCA)
	if err != nil {
		return err
	}
	w.show(own, pool)
	return nil
}

// show makes the worker bear a certificate and trust its authority.
func (w *instance) show(h pki.Holder, pool *x509.CertPool) {
	w.holder = h
	w.trust.kvServer = pki.MutualConfig(h, pool, pki.RoleWorker)
	w.trust.kvClient = pki.RoleClientConfig(h, pool, pki.RoleWorker)
}

func (w *instance) closeSockets() {
	_ = w.tcp.Close()
	if w.udp != nil {
		_ = w.udp.Close()
	}
}

func (w *instance) serve() error {
	if w.trust.http != nil {
		return w.http.ServeTLS(w.tcp, "", "")
	}
	return w.http.Serve(w.tcp)
}

// load waits for the model. It gives up when ctx ends: then both results are
// nil and the model, which cannot be interrupted, is closed once it is there.
func (w *instance) load(ctx context.Context) (engine.Runner, error) {
	type result struct {
		r   engine.Runner
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, err := w.o.Load()
		done <- result{r, err}
	}()
	select {
	case res := <-done:
		return res.r, res.err
	case <-ctx.Done():
		go func() {
			if res := <-done; res.r != nil {
				_ = res.r.Close()
			}
		}()
		return nil, nil
	}
}

// run serves with a loaded model until ctx ends, then drains. It returns errLost
// when the model is no more.
func (w *instance) run(ctx context.Context, runner engine.Runner, served chan error) error {
	m, err := w.model(runner)
	if err != nil {
		return err
	}
	kvCtx, stopKV := context.WithCancel(context.WithoutCancel(ctx))
	defer stopKV()
	kvDone, err := w.startKV(kvCtx, m)
	if err != nil {
		return err
	}
	loopCtx, stopLoop := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLoop()
	looped := make(chan error, 1)
	go func() { looped <- m.Loop.Run(loopCtx) }()

	w.experts.ready(w.id, runner, m.Metrics)
	w.api.Ready(m)
	w.register(m)
	w.log.Info("worker ready", "name", w.id.Name, "model", m.Info.Name, "worker_role", w.id.Role, "listen", w.tcp.Addr().String(), "kv", m.KV != nil)
	if w.o.OnReady != nil {
		w.o.OnReady(Ready{Addr: w.tcp.Addr(), Epoch: w.id.Epoch, Info: m.Info})
	}
	select {
	case <-ctx.Done():
		w.drain()
	case err = <-looped:
		looped <- nil
		err = fmt.Errorf("%w: %w", errLost, err)
	case err = <-served:
		served <- nil
	}
	stopLoop()
	if e := <-looped; err == nil {
		err = e
	}
	if !errors.Is(err, errLost) {
		w.shutdown(lastWords)
	}
	stopKV()
	return errors.Join(err, <-kvDone)
}

// model puts together what serves a runner.
func (w *instance) model(runner engine.Runner) (*api.Model, error) {
	c, info := &w.o.Config, runner.Info()
	if w.cost != nil {
		if err := w.cost.CheckFor(info.Fingerprint.String()); err != nil {
			return nil, err
		}
		if now := info.Fingerprint.String(); w.cost.Dated(now) {
			w.log.Warn("the cost model was measured with another version of the runner or another KV format: measure it anew with 'weir worker bench'", "file", c.CostModel, "measured", w.cost.Fingerprint, "now", now)
		}
		if w.cost.Poor() {
			w.log.Warn("the cost model is poor: chunks, packing, moves and the verdict that a worker degrades read it", "file", c.CostModel, "held_out", w.cost.HeldOut)
		}
	}
	m := &api.Model{Info: info, Tokenizer: runner, Pieces: loop.NewPieces(runner), Board: state.NewBoard(),
		Metrics: metrics.New(info.Name, info.KVTokens), PrefixCache: c.PrefixCache == on, Cost: w.cost}
	var err error
	m.Loop, err = loop.New(loop.Options{Runner: runner, Pieces: m.Pieces, Metrics: m.Metrics, Board: m.Board, Log: w.log,
		PrefixCache: m.PrefixCache, Chunk: c.Chunk, Headroom: c.Headroom, Cost: w.cost})
	return m, err
}

// startKV serves hand-offs until ctx ends; then done gives the end's error. A
// worker without certificates has none.
func (w *instance) startKV(ctx context.Context, m *api.Model) (done <-chan error, err error) {
	out := make(chan error, 1)
	if !w.o.Config.certificates() {
		out <- nil
		return out, nil
	}
	if err := w.listenKV(); err != nil {
		return nil, err
	}
	w.store = handoff.NewStore(w.o.Config.KVExportBytes, handoffTTL, m.Metrics.ExportsExpired.Inc)
	m.Metrics.ExportsKept(w.store.Bytes)
	e, err := handoff.NewEndpoint(handoff.Options{Conn: w.udp, Server: w.trust.kvServer, Client: w.trust.kvClient,
		Store: w.store, MaxPulled: w.o.Config.KVImportBytes, Patience: w.o.Config.KVPatience, Info: m.Info, Metrics: m.Metrics, Log: w.log})
	if err != nil {
		return nil, err
	}
	m.KV = &api.KV{Endpoint: e, Store: w.store}
	m.KV.Host, m.KV.Port = w.advertised()
	go func() {
		err := e.Run(ctx)
		w.store.Close()
		out <- errors.Join(err, e.Close()) // the socket too
	}()
	return out, nil
}

// lastWords is how long handlers may take to tell their clients that the loop
// has cut them off.
const lastWords = time.Second

func (w *instance) shutdown(most time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	_ = w.http.Shutdown(ctx) // who is slower is cut without a word
}

// drain lets running requests end and promised hand-offs be fetched, within
// the configured time.
func (w *instance) drain() {
	w.api.Drain()
	defer w.leave()()
	w.log.Info("worker draining", "at_most", w.o.Config.Drain)
	ctx, cancel := context.WithTimeout(context.Background(), w.o.Config.Drain)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for w.unfinished() && ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	w.api.Stop()
	_ = w.http.Shutdown(ctx) // what is left then is cut by stopping the loop
}

// unfinished says that requests run or hand-offs wait to be fetched.
func (w *instance) unfinished() bool {
	return w.api.InFlight() > 0 || w.store != nil && w.store.Bytes() > 0
}
