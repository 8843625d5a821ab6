package handoff

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
)

// PullError is a hand-off that could not be had. Reason is one of
// metrics.Fallback*.
type PullError struct {
	Reason string
	Err    error
}

func (e *PullError) Error() string { return "hand-off: " + e.Reason + ": " + e.Err.Error() }
func (e *PullError) Unwrap() error { return e.Err }

func failure(reason string, err error) error { return &PullError{reason, err} }

// peerKey names a process: a restarted worker has a new epoch, and with it a
// new connection.
type peerKey struct{ addr, epoch string }

// peer is one connection, dialled by the first who needs it.
type peer struct {
	mu   sync.Mutex
	conn *quic.Conn
}

func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		_ = p.conn.CloseWithError(0, "")
		p.conn = nil
	}
}

// Pull fetches and verifies the state of prompt. The caller, or the loop that it
// is given to, calls Done when it needs the bytes no more. Errors are *PullError.
func (e *Endpoint) Pull(ctx context.Context, src Source, prompt []engine.Token) (*loop.Handoff, error) {
	began := time.Now()
	stream, err := e.reach(ctx, src)
	opened := time.Now() // a dial says nothing of the next pull
	var h *loop.Handoff
	var n int64
	if err == nil {
		h, n, err = e.fetch(ctx, stream, src, prompt)
	}
	if err == nil {
		e.o.Metrics.PullSeconds.Observe(time.Since(began).Seconds())
	}
	if ctx.Err() == nil { // a client that left is no failure of the peer
		e.account(src.Addr, err == nil, n, time.Since(opened))
	}
	return h, err
}

// reach opens a stream to a peer that can have a hand-off for this model.
func (e *Endpoint) reach(ctx context.Context, src Source) (*quic.Stream, error) {
	if src.Extra != nil && src.Extra.Fingerprint != e.o.Info.Fingerprint.String() {
		return nil, failure(metrics.FallbackVerify, fmt.Errorf("%w: another model, runner or KV format", errVerify))
	}
	s, err := e.open(ctx, src)
	if err != nil {
		return nil, failure(metrics.FallbackDial, err)
	}
	return s, nil
}

// fetch also returns the bytes that came.
func (e *Endpoint) fetch(ctx context.Context, stream *quic.Stream, src Source, prompt []engine.Token) (*loop.Handoff, int64, error) {
	defer stream.CancelRead(0)
	stop := context.AfterFunc(ctx, func() { stream.CancelRead(0); stream.CancelWrite(0) })
	defer stop()
	h, n, err := e.receive(ctx, stream, src, prompt)
	if err != nil {
		stream.CancelWrite(1) // the hand-off stays with the peer
		return nil, 0, err
	}
	e.accept(stream)
	return h, n, nil
}

// accept lets the peer forget what has been verified, and waits until it has. If
// it never hears of it, its lease ends.
func (e *Endpoint) accept(s *quic.Stream) {
	_, _ = s.Write([]byte{receipt})
	_ = s.Close()
	_ = s.SetReadDeadline(time.Now().Add(receiptTimeout))
	_, _ = s.Read(make([]byte, 1))
}

func (e *Endpoint) receive(ctx context.Context, s *quic.Stream, src Source, prompt []engine.Token) (*loop.Handoff, int64, error) {
	ahead := e.staged(src, prompt)
	defer func() { e.release(ahead) }()
	_ = s.SetDeadline(time.Now().Add(e.o.Patience))
	if err := writeRequest(s, request{Handle: src.Handle.String(), Operation: src.Operation, Have: ahead.tokens()}); err != nil {
		return nil, 0, failure(metrics.FallbackTransfer, err)
	}
	header, err := readHeader(s)
	switch {
	case err != nil:
		e.drop(src, err)
		return nil, 0, failure(metrics.FallbackTransfer, err)
	case header.Status != statusOK:
		return nil, 0, failure(metrics.FallbackGone, ErrGone)
	}
	if err := header.check(e.o.Info, len(prompt), ahead.tokens()); err != nil {
		return nil, 0, failure(metrics.FallbackVerify, err)
	}
	stopped := time.Now().Add(-time.Duration(header.StoppedMS * float64(time.Millisecond)))
	if x := src.Extra; x != nil && header.From == x.From && (x.SHA256 != header.SHA256 || x.Bytes != header.payload()) {
		return nil, 0, failure(metrics.FallbackVerify, fmt.Errorf("%w: not the bytes that were promised", errVerify))
	}
	room, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	if err := e.pulled.Acquire(room, header.payload()); err != nil {
		return nil, 0, failure(metrics.FallbackBusy, fmt.Errorf("no room for %d bytes: %w", header.payload(), err))
	}
	h, err := e.payload(s, header, prompt)
	if err != nil {
		e.pulled.Release(header.payload())
		return nil, 0, err
	}
	kept := header.payload()
	if header.From > 0 {
		h.KV, h.From = slices.Concat(ahead.kv, h.KV), 0
		kept += ahead.keep()
	}
	if header.StoppedMS > 0 {
		h.Stopped = stopped
	}
	h.Done = sync.OnceFunc(func() { e.pulled.Release(kept) })
	return h, header.payload(), nil
}

// payload reads and verifies what header announces.
func (e *Endpoint) payload(s *quic.Stream, header Header, prompt []engine.Token) (*loop.Handoff, error) {
	in := &progress{s: s}
	h, err := readPayload(in, header)
	e.o.Metrics.PullBytes.Add(float64(in.n))
	switch {
	case errors.Is(err, errVerify):
		return nil, failure(metrics.FallbackVerify, err)
	case err != nil:
		return nil, failure(metrics.FallbackTransfer, err)
	case !slices.Equal(h.Tokens, prompt):
		return nil, failure(metrics.FallbackVerify, fmt.Errorf("%w: it belongs to another prompt", errVerify))
	}
	return &h, nil
}

// progress reads a stream that must not stall. A read gives a packet or so, and
// setting a deadline costs about as much, so a deadline is for many of them.
type progress struct {
	s   *quic.Stream
	n   int64
	due int64 // where the deadline is set anew
}

func (p *progress) Read(b []byte) (int, error) {
	if p.n >= p.due {
		_ = p.s.SetReadDeadline(time.Now().Add(stallTimeout))
		p.due = p.n + 64<<10
	}
	n, err := p.s.Read(b)
	p.n += int64(n)
	return n, err
}

// open opens a stream to the peer, dialling when there is no live connection.
func (e *Endpoint) open(ctx context.Context, src Source) (*quic.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, e.o.Patience)
	defer cancel()
	p := e.peer(src)
	p.mu.Lock()
	defer p.mu.Unlock()
	s, err := e.dial(ctx, src, p)
	if err != nil {
		e.forget(src, p)
	}
	return s, err
}

// dial is open with p's lock held.
func (e *Endpoint) dial(ctx context.Context, src Source, p *peer) (*quic.Stream, error) {
	if p.conn != nil {
		if s, err := p.conn.OpenStreamSync(ctx); err == nil {
			return s, nil
		}
		_ = p.conn.CloseWithError(0, "")
		p.conn = nil
	}
	addr, err := net.ResolveUDPAddr("udp", src.Addr)
	if err != nil {
		return nil, fmt.Errorf("address of the peer: %w", err)
	}
	conf := e.o.Client.Clone()
	conf.NextProtos = []string{ALPN}
	conn, err := e.transport.Dial(ctx, addr, conf, e.quicConfig())
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", src.Addr, err)
	}
	s, err := conn.OpenStreamSync(ctx)
	if err != nil {
		_ = conn.CloseWithError(0, "")
		return nil, fmt.Errorf("open stream to %s: %w", src.Addr, err)
	}
	p.conn = conn
	return s, nil
}

// peer returns the entry of a process and forgets those of earlier processes
// at the same address.
func (e *Endpoint) peer(src Source) *peer {
	key := peerKey{src.Addr, src.Epoch}
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peers[key]
	if p == nil {
		for k, old := range e.peers {
			if k.addr == src.Addr {
				go old.close() // may be waiting for a dial
				delete(e.peers, k)
			}
		}
		p = &peer{}
		e.peers[key] = p
	}
	return p
}

func (e *Endpoint) forget(src Source, p *peer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if key := (peerKey{src.Addr, src.Epoch}); e.peers[key] == p {
		delete(e.peers, key)
	}
}

// drop gives up a connection on which the peer did not answer in time: the next
// pull dials anew.
func (e *Endpoint) drop(src Source, err error) {
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		return
	}
	p := e.peer(src)
	e.forget(src, p)
	go p.close() // may have to wait for somebody's dial
}
