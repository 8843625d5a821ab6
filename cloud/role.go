package cloud

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/cloud/admit"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/control"
	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/rows"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants/lease"
)

// plane is what the role needs of the control plane.
type plane interface {
	gateway.Directory
	gateway.Recorder
	gateway.UsageReader
	gateway.Claims
	gateway.Feedback
	// Register adds the routes of devices and operators.
	Register(gin.IRouter)
	// Attach gives the routes of operators the instances to tell of.
	Attach(control.Instances)
	// Run loads and refreshes until ctx ends.
	Run(ctx context.Context) error
	// Arms are what the equal pools of models have earned over all gateways.
	Arms(context.Context) (map[string]cascading.Arms, error)
	// DatabaseUp reports whether the last contact with the database succeeded.
	DatabaseUp() bool
	// Leases is the store of budgets that several gateways share; nil where
	// this gateway is alone.
	Leases() *lease.Store
	// Rows are the ledger rows that wait on this gateway's disk.
	Rows() *rows.Recorder
}

// role is a wired cloud that has bound its sockets and not yet started.
type role struct {
	conf     Config
	log      *slog.Logger
	servers  *servers
	pool     *pool.Pool
	admit    *admit.Admitter
	gateway  *gateway.Gateway
	plane    plane
	client   *http.Client
	cascades *cascadeState
	models   map[string]gateway.Model
}

// newRole binds the sockets and wires everything to them. auth signs this
// gateway's own certificates and verifies those of devices and workers.
func newRole(conf Config, p plane, auth *pki.Authority, tel *telemetry.Telemetry, log *slog.Logger) (r *role, err error) {
	socks, err := bind(&conf)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			socks.close()
		}
	}()
	holder, err := auth.Source(pki.Spec{Peer: pki.Peer{Role: pki.RoleGateway, Name: conf.Name}, Hosts: serverNames(&conf)})
	if err != nil {
		return nil, fmt.Errorf("gateway certificate: %w", err)
	}
	r = &role{conf: conf, log: log, plane: p,
		servers: newServers(socks, pki.ServerConfig(holder, auth.Pool()), log),
		client:  instanceClient(pki.ClientConfig(holder, auth.Pool(), pki.RoleWorker))}
	r.pool, err = pool.New(conf.pool(r.client, tel.Registry, log))
	if err != nil {
		return nil, err
	}
	p.Attach(r.pool)
	epoch := contract.NewID()
	if r.admit, err = newAdmission(&conf, epoch, p, r.pool, tel, log); err != nil {
		return nil, err
	}
	models, err := conf.gatewayModels()
	if err != nil {
		return nil, err
	}
	r.models = models
	if r.cascades, err = newCascadeState(conf.DataDir, models, log); err != nil {
		return nil, err
	}
	r.gateway, err = gateway.New(gateway.Options{
		Directory: p, Admission: r.admit, Recorder: p, Usage: p, Claims: p, Feedback: p, Pool: r.pool, Models: models, Client: r.client, Telemetry: tel, Log: log,
		Timeouts:    gateway.Timeouts{FirstByte: conf.FirstByteTimeout, Stall: conf.StallTimeout, Answer: conf.AnswerTimeout},
		MaxAttempts: conf.MaxAttempts, MaxInFlight: conf.MaxInflight, Node: conf.Name, Epoch: epoch,
		Mount: p.Register, AltSvc: r.servers.altSvc,
	})
	if err != nil {
		return nil, err
	}
	r.servers.handle(r.gateway, opsHandler(tel.MetricsHandler(), r.health), r.gateway.InFlight)
	return r, nil
}

func newAdmission(conf *Config, epoch string, p plane, instances *pool.Pool, tel *telemetry.Telemetry, log *slog.Logger) (*admit.Admitter, error) {
	o := admit.Options{Directory: p, Pool: instances, Registry: tel.Registry, Log: log}
	if leases := p.Leases(); leases != nil {
		o.Leases, o.Recovered = leases, p.Rows().Recovered()
		o.Gateway = lease.Gateway{Node: p.Rows().Node(), Epoch: epoch, Name: conf.Name}
		o.Remainders = filepath.Join(conf.DataDir, "budgets.json")
	}
	a, err := admit.New(o)
	if err == nil && p.Rows() != nil {
		p.Rows().OnTwice(a.GiveBack)
	}
	return a, err
}

// run serves until ctx ends, then drains.
func (r *role) run(ctx context.Context) error {
	r.log.Info("cloud listens", "plain", r.servers.socks.plain.Addr(), "tls", r.servers.socks.tls.Addr(),
		"http3", r.servers.socks.udp.LocalAddr(), "ops", r.servers.socks.ops.Addr(), "instances", len(r.conf.Instances), "pools", r.conf.poolNames())
	// What serves requests outlives the drain: the plane writes the last
	// ledger rows, the pool holds the legs.
	after, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var support errgroup.Group
	support.Go(func() error { r.pool.Run(after); return nil })
	support.Go(func() error { r.cascades.run(after, saveCascades); return nil })
	support.Go(func() error { followArms(after, r.plane.Arms, r.models, armsEvery); return nil })
	// Leases go back before the plane closes the database.
	admitting, leave := context.WithCancel(after)
	defer leave()
	left := make(chan struct{})
	go func() { defer close(left); r.admit.Run(admitting) }()
	failed := make(chan error, 1)
	support.Go(func() error {
		err := r.plane.Run(after)
		if err != nil && !errors.Is(err, context.Canceled) {
			failed <- err
			return err
		}
		return nil
	})
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-failed:
			cancel(err)
		case <-after.Done():
		}
	}()
	err := r.servers.run(ctx, r.conf.Drain)
	leave()
	<-left
	stop()
	r.client.CloseIdleConnections()
	return errors.Join(err, support.Wait())
}

func (r *role) health() health {
	h := health{Snapshot: r.plane.Index() != nil, Database: r.plane.DatabaseUp()}
	for _, s := range r.pool.Status() {
		if s.Leaving {
			continue
		}
		h.Instances++
		if s.Ready {
			h.Ready++
		}
	}
	switch {
	case r.servers.draining.Load():
		h.Status = "draining"
	case !h.Snapshot:
		h.Status = "starting"
	case !h.Database:
		h.Status = "degraded"
	default:
		h.Status = "ready"
	}
	return h
}

// serverNames are the names that the TLS certificate bears.
func serverNames(c *Config) []string {
	names := append(pki.LoopbackHosts(), c.TLSNames...)
	if host, _, err := net.SplitHostPort(c.TLSListen); err == nil {
		if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() && !ip.IsLoopback() {
			names = append(names, host)
		}
	}
	return names
}

// instanceClient talks to the pools' instances. It has no timeout of its own:
// the gateway bounds each leg.
func instanceClient(conf *tls.Config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:     conf,
			ForceAttemptHTTP2:   true,
			DialContext:         (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: 5 * time.Second,
			MaxIdleConnsPerHost: 256,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// defaultName is the host's name, cut to what a certificate may hold.
func defaultName() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		return "gateway"
	}
	return host[:min(len(host), 63)]
}
