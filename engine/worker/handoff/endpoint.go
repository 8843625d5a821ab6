package handoff

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sync/semaphore"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/metrics"
)

// Bounds of one exchange, beside Options.Patience.
const (
	roomTimeout  = 2 * time.Second  // until the loop has taken over enough of what was pulled
	stallTimeout = 5 * time.Second  // for each 64 KiB of the payload
	sendTimeout  = 30 * time.Second // of a whole payload, and from then to the receipt; as long as a lease
	maxStreams   = 64               // hand-offs in flight per connection

	receiptTimeout = time.Second // until the peer has taken note of the receipt, or of an answer that is none
	lastBytes      = time.Second // for exchanges under way when the worker ends
)

// Options make an Endpoint.
type Options struct {
	Conn           net.PacketConn // serves and dials; closed by Close
	Server, Client *tls.Config    // mutual TLS, both demanding the role worker
	Store          *Store
	// MaxPulled bounds the bytes pulled that the loop has not taken over yet.
	MaxPulled int64
	// Patience bounds how long a peer may take to a connection, and again to the
	// beginning of its answer. It must be positive, and should be short: a decode leg
	// that waits for a dead peer delays its client's first token, and computing the
	// prompt is the way out.
	Patience time.Duration
	Info     engine.Info
	Metrics  *metrics.Set
	Log      *slog.Logger
}

// Endpoint is a worker's end of the hand-off protocol: it serves its Store and
// pulls from others, over one UDP socket.
type Endpoint struct {
	o         Options
	transport *quic.Transport
	listener  *quic.Listener
	pulled    *semaphore.Weighted // bytes, of MaxPulled

	mu        sync.Mutex
	stages    map[Handle]*stage
	peers     map[peerKey]*peer
	transfers map[string]*transfer // by address
}

// NewEndpoint starts to listen. Call Run to serve, and Close at the end.
func NewEndpoint(o Options) (*Endpoint, error) {
	e := &Endpoint{o: o, transport: &quic.Transport{Conn: o.Conn}, stages: map[Handle]*stage{}, peers: map[peerKey]*peer{}, transfers: map[string]*transfer{},
		pulled: semaphore.NewWeighted(o.MaxPulled)}
	if o.Patience <= 0 {
		return nil, fmt.Errorf("hand-off patience %v must be positive", o.Patience)
	}
	conf := o.Server.Clone()
	conf.NextProtos = []string{ALPN}
	var err error
	if e.listener, err = e.transport.Listen(conf, e.quicConfig()); err != nil {
		return nil, fmt.Errorf("hand-off listener: %w", err)
	}
	return e, nil
}

// QUICConfig is how hand-offs use QUIC.
func QUICConfig() *quic.Config {
	return &quic.Config{
		MaxIdleTimeout: 30 * time.Second, MaxIncomingStreams: maxStreams, MaxIncomingUniStreams: -1,
		// Windows for a fast network from the first hand-off on.
		InitialStreamReceiveWindow: 2 << 20, MaxStreamReceiveWindow: 16 << 20,
		InitialConnectionReceiveWindow: 4 << 20, MaxConnectionReceiveWindow: 64 << 20,
	}
}

func (e *Endpoint) quicConfig() *quic.Config {
	c := QUICConfig()
	c.HandshakeIdleTimeout = e.o.Patience
	return c
}

// Run serves hand-offs until ctx ends.
func (e *Endpoint) Run(ctx context.Context) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		conn, err := e.listener.Accept(ctx)
		switch {
		case ctx.Err() != nil || errors.Is(err, quic.ErrServerClosed):
			return nil
		case err != nil:
			return fmt.Errorf("hand-off listener: %w", err)
		}
		conns.Go(func() { e.serve(ctx, conn) })
	}
}

func (e *Endpoint) serve(ctx context.Context, conn *quic.Conn) {
	var streams sync.WaitGroup
	for {
		s, err := conn.AcceptStream(ctx)
		if err != nil {
			break // the end, or the peer left, or its certificate was refused
		}
		streams.Go(func() { e.answer(s) })
	}
	hangUp := func() { _ = conn.CloseWithError(0, "") }
	defer time.AfterFunc(lastBytes, hangUp).Stop()
	streams.Wait()
	hangUp()
}

// answer serves one stream.
func (e *Endpoint) answer(s *quic.Stream) {
	defer s.CancelRead(0)
	_ = s.SetReadDeadline(time.Now().Add(e.o.Patience))
	_ = s.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err := e.obey(s); err != nil {
		e.o.Log.Warn("hand-off not delivered", "error", err)
		s.CancelWrite(1)
	}
}

func (e *Endpoint) obey(s *quic.Stream) error {
	req, err := readRequest(s)
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	h, err := ParseHandle(req.Handle)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFrame, err)
	}
	if req.Stage {
		return e.takeStage(s, h, req.Operation)
	}
	return e.send(s, h, req)
}

func (e *Endpoint) send(s *quic.Stream, h Handle, req request) error {
	item, done, err := e.o.Store.Take(h, req.Operation, func() { s.CancelWrite(1); s.CancelRead(1) })
	if err != nil {
		return refuse(s)
	}
	item = item.after(req.Have)
	err = deliver(s, item)
	done(err == nil)
	if err != nil {
		return err
	}
	e.o.Metrics.ExportBytes.Add(float64(item.size()))
	return s.Close() // only now: the reader then knows that the hand-off is no more
}

// refuse says that there is no such hand-off, and waits for the reader to leave:
// a connection that ends before would look like a broken transfer.
func refuse(s *quic.Stream) error {
	if err := writeHeader(s, Header{Status: statusGone}); err != nil {
		return err
	}
	_ = s.Close() // no error, unless the reader has left already
	_ = s.SetReadDeadline(time.Now().Add(receiptTimeout))
	_, _ = s.Read(make([]byte, 1))
	return nil
}

// deliver sends a hand-off and waits until the reader has verified it.
func deliver(s *quic.Stream, item *Item) error {
	header := item.Header
	if !item.Stopped.IsZero() {
		header.StoppedMS = float64(time.Since(item.Stopped).Microseconds()) / 1000
	}
	if err := writeHeader(s, header); err != nil {
		return err
	}
	if err := item.writePayload(s); err != nil {
		return err
	}
	_ = s.SetReadDeadline(time.Now().Add(sendTimeout))
	return readReceipt(s)
}

// Close ends all connections and closes the socket.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	for _, p := range e.peers {
		p.close()
	}
	e.peers = map[peerKey]*peer{}
	for h := range e.stages {
		e.dropStage(h)
	}
	e.mu.Unlock()
	err := errors.Join(e.listener.Close(), e.transport.Close())
	return errors.Join(err, ignoreClosed(e.o.Conn.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

var _ io.Closer = (*Endpoint)(nil)
