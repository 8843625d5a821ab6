package poolbench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/handoff"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/internal/bench"
	"github.com/weirhq/weir/internal/pki"
)

const (
	handoffBytes  = 32 << 20
	handoffRounds = 9
	handoffTokens = 2048
	rawALPN       = "weir-bench/1"
)

// handoffs moves the same bytes as a hand-off, over a bare QUIC stream between
// the same certificates, and over TCP, in turns.
func handoffs(ctx context.Context, env bench.Env) ([]bench.Bar, error) {
	a, err := pki.OpenAuthority(env.Dir)
	if err != nil {
		return nil, err
	}
	chain, key, err := a.IssuePEM(pki.Spec{Peer: pki.Peer{Role: pki.RoleWorker, Name: "bench"}, Hosts: pki.LoopbackHosts()})
	if err != nil {
		return nil, err
	}
	holder, err := pki.ParseStatic(chain, key)
	if err != nil {
		return nil, err
	}
	server, client := pki.MutualConfig(holder, a.Pool(), pki.RoleWorker), pki.RoleClientConfig(holder, a.Pool(), pki.RoleWorker)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := newPair(ctx, server, client)
	if err != nil {
		return nil, err
	}
	defer p.close()
	var weir, raw, tcp, ratios []float64
	for i := range handoffRounds + 1 {
		w, err1 := p.pull(ctx)
		q, err2 := overQUIC(ctx, server, client)
		t, err3 := overTCP()
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, err
		}
		if i == 0 {
			continue // connections warm up
		}
		weir, raw, tcp, ratios = append(weir, w), append(raw, q), append(tcp, t), append(ratios, w/q)
	}
	fmt.Fprintf(env.Out, "hand-off of %d MiB over loopback: %.0f MB/s, bare QUIC %.0f, TCP %.0f (medians of %d turns)\n",
		handoffBytes>>20, median(weir), median(raw), median(tcp), handoffRounds)
	return []bench.Bar{
		{Name: "pools.handoff_over_quic", Measured: median(ratios), Want: bench.AtLeast, Bound: leastOverQUIC},
		{Name: "pools.handoff", Measured: median(weir), Unit: "MB/s"},
		{Name: "pools.tcp", Measured: median(tcp), Unit: "MB/s"},
	}, nil
}

// pair is two ends of the hand-off protocol in this process.
type pair struct {
	from, to *handoff.Endpoint
	store    *handoff.Store
	addr     string
	item     *handoff.Item
	prompt   []engine.Token
	done     chan error
}

func newPair(ctx context.Context, server, client *tls.Config) (*pair, error) {
	info := engine.Info{Vocab: 256, KVBytesPerToken: handoffBytes / handoffTokens, Fingerprint: engine.Fingerprint{Weights: "bench"}}
	p := &pair{store: handoff.NewStore(1<<30, time.Minute, nil), prompt: make([]engine.Token, handoffTokens), done: make(chan error, 2)}
	p.item = handoff.NewItem(loop.Handoff{Tokens: p.prompt, Logits: make([]float32, info.Vocab), KV: [][]byte{make([]byte, handoffBytes)}}, info.Fingerprint)
	open := func() (*handoff.Endpoint, string, error) {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			return nil, "", err
		}
		e, err := handoff.NewEndpoint(handoff.Options{Conn: conn, Server: server, Client: client, Store: p.store, MaxPulled: 1 << 30, Patience: 2 * time.Second,
			Info: info, Metrics: metrics.New("bench", 1), Log: slog.New(slog.DiscardHandler)})
		return e, conn.LocalAddr().String(), err
	}
	var err error
	if p.from, p.addr, err = open(); err != nil {
		return nil, err
	}
	if p.to, _, err = open(); err != nil {
		return nil, errors.Join(err, p.from.Close())
	}
	go func() { p.done <- p.from.Run(ctx) }()
	go func() { p.done <- p.to.Run(ctx) }()
	return p, nil
}

func (p *pair) close() {
	_ = errors.Join(p.to.Close(), p.from.Close())
	<-p.done
	<-p.done
	p.store.Close()
}

// pull is one hand-off, from the request to the verified bytes, in MB/s.
func (p *pair) pull(ctx context.Context) (float64, error) {
	h := handoff.NewHandle()
	if _, err := p.store.Put(h, "bench", p.item); err != nil {
		return 0, err
	}
	began := time.Now()
	got, err := p.to.Pull(ctx, handoff.Source{Addr: p.addr, Epoch: "bench", Handle: h, Operation: "bench"}, p.prompt)
	if err != nil {
		return 0, err
	}
	took := time.Since(began)
	got.Done()
	return rate(took), nil
}

func rate(took time.Duration) float64 { return handoffBytes / 1e6 / took.Seconds() }

// overQUIC sends as many bytes over one stream of a new connection. The
// handshake is not counted, as the hand-off's connection is warm.
func overQUIC(ctx context.Context, server, client *tls.Config) (float64, error) {
	server, client = server.Clone(), client.Clone()
	server.NextProtos, client.NextProtos = []string{rawALPN}, []string{rawALPN}
	conf := handoff.QUICConfig()
	ln, err := quic.ListenAddr("127.0.0.1:0", server, conf)
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	sent := make(chan error, 1)
	go func() {
		conn, err := ln.Accept(ctx)
		if err != nil {
			sent <- err
			return
		}
		s, err := conn.AcceptStream(ctx)
		if err == nil {
			_, err = io.ReadFull(s, make([]byte, 1))
		}
		if err == nil {
			_, err = s.Write(make([]byte, handoffBytes))
			err = errors.Join(err, s.Close())
		}
		sent <- err
	}()
	conn, err := quic.DialAddr(ctx, ln.Addr().String(), client, conf)
	if err != nil {
		return 0, err
	}
	defer conn.CloseWithError(0, "")
	s, err := conn.OpenStreamSync(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := s.Write([]byte{1}); err != nil {
		return 0, err
	}
	_, err = io.ReadFull(s, make([]byte, handoffBytes))
	took := time.Since(began)
	return rate(took), errors.Join(err, <-sent)
}

// overTCP sends as many bytes over one connection.
func overTCP() (float64, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	sent := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			_, err = conn.Write(make([]byte, handoffBytes))
			err = errors.Join(err, conn.Close())
		}
		sent <- err
	}()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	began := time.Now()
	_, err = io.ReadFull(conn, make([]byte, handoffBytes))
	took := time.Since(began)
	return rate(took), errors.Join(err, <-sent)
}
