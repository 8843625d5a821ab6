package cloud

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go/http3"
	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/internal/loopback"
)

// servers serve one handler on the plain, the TLS and the HTTP/3 listener, and
// the operations handler on its own.
type servers struct {
	socks           sockets
	plain, tls, ops *http.Server
	h3              *http3.Server
	busy            func() int64 // requests under way
	draining        atomic.Bool
	log             *slog.Logger
}

func newServers(socks sockets, conf *tls.Config, log *slog.Logger) *servers {
	s := &servers{socks: socks, log: log}
	s.plain, s.tls, s.ops = newServer(nil, log), newServer(nil, log), newServer(nil, log)
	s.tls.TLSConfig = conf
	s.h3 = newHTTP3(nil, conf.Clone(), socks.udp.LocalAddr(), log)
	return s
}

// handle sets what is served. It must be called before run.
func (s *servers) handle(api, ops http.Handler, busy func() int64) {
	s.plain.Handler, s.tls.Handler, s.h3.Handler, s.ops.Handler = api, api, api, loopback.Guard(s.socks.ops.Addr(), ops)
	s.busy = busy
}

// altSvc announces HTTP/3 to clients on TCP.
func (s *servers) altSvc(h http.Header) error { return s.h3.SetQUICHeaders(h) }

// run serves until ctx ends or a listener fails, then drains.
func (s *servers) run(ctx context.Context, drain time.Duration) error {
	defer s.socks.close()
	g, ctx := errgroup.WithContext(ctx)
	serve := func(f func() error) {
		g.Go(func() error {
			if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
				return err
			}
			return nil
		})
	}
	serve(func() error { return s.plain.Serve(s.socks.plain) })
	serve(func() error { return s.tls.ServeTLS(s.socks.tls, "", "") })
	serve(func() error { return s.h3.Serve(s.socks.udp) })
	serve(func() error { return s.ops.Serve(s.socks.ops) })
	g.Go(func() error {
		<-ctx.Done()
		s.shutdown(drain)
		return nil
	})
	return g.Wait()
}

// lastBytes is how long connections of HTTP/3 without a request stay open for
// what is still on its way.
const lastBytes = 2 * time.Second

// shutdown lets requests under way end for as long as drain, then cuts.
func (s *servers) shutdown(drain time.Duration) {
	s.draining.Store(true)
	s.log.Info("draining", "requests", s.busy(), "for", drain)
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	var g errgroup.Group
	for _, srv := range []*http.Server{s.plain, s.tls} {
		g.Go(func() error { return srv.Shutdown(ctx) })
	}
	// A handler is done before the last bytes of its answer have arrived. Clients
	// of HTTP/3 close their connection behind them when they are told to go away;
	// those that keep it are given a moment.
	h3ctx, end := context.WithCancel(ctx)
	defer end()
	g.Go(func() error { _ = s.h3.Shutdown(h3ctx); return nil })
	s.awaitIdle(ctx)
	defer time.AfterFunc(lastBytes, end).Stop()
	if err := g.Wait(); err != nil || s.busy() > 0 { // HTTP/3's end says nothing of its requests
		s.log.Warn("requests were cut off", "requests", s.busy())
	}
	for _, srv := range []*http.Server{s.plain, s.tls, s.ops} {
		_ = srv.Close()
	}
	_ = s.h3.Close()
	// Handlers that were cut off still have a ledger row to write.
	last, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	s.awaitIdle(last)
}

func (s *servers) awaitIdle(ctx context.Context) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.busy() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
