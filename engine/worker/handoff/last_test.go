package handoff

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/internal/pki"
)

// accept takes one connection and its first stream.
func accept(t *testing.T, ln *quic.Listener) (*quic.Conn, *quic.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := ln.Accept(ctx)
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	s, err := conn.AcceptStream(ctx)
	if err != nil {
		t.Error(err)
	}
	return conn, s
}

// TestGoneThenClosed: a reader whose hand-off is gone knows that, though the
// worker that says so ends.
func TestGoneThenClosed(t *testing.T) {
	a, e := ends(t, testInfo, 1)
	conf := pki.MutualConfig(holder(t, a, pki.RoleWorker), a.Pool(), pki.RoleWorker)
	conf.NextProtos = []string{ALPN}
	ln, err := quic.ListenAddr("127.0.0.1:0", conf, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for i := range 20 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			conn, s := accept(t, ln)
			if s == nil {
				return
			}
			if _, err := readRequest(s); err != nil {
				t.Error(err)
			}
			if err := refuse(s); err != nil {
				t.Error(err)
			}
			_ = conn.CloseWithError(0, "")
		}()
		_, err := e[0].Pull(t.Context(), Source{Addr: ln.Addr().String(), Epoch: strconv.Itoa(i)}, []engine.Token{1})
		if reasonOf(err) != metrics.FallbackGone {
			t.Errorf("got %v", err)
		}
		<-done
	}
}

// TestSilentReader: a reader that stands still does not keep a worker that ends.
func TestSilentReader(t *testing.T) {
	a, _ := ends(t, testInfo, 0)
	h := holder(t, a, pki.RoleWorker)
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(1<<30, time.Minute, nil)
	defer store.Close()
	e, err := NewEndpoint(Options{Conn: conn, Server: pki.MutualConfig(h, a.Pool(), pki.RoleWorker), Client: pki.RoleClientConfig(h, a.Pool(), pki.RoleWorker),
		Store: store, MaxPulled: 1 << 20, Patience: patience, Info: testInfo, Metrics: metrics.New("m", 1), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	src := (&end{e, store, h, conn.LocalAddr().String()}).put(t, []engine.Token{1, 2}, 16)

	conf := pki.RoleClientConfig(h, a.Pool(), pki.RoleWorker)
	conf.NextProtos = []string{ALPN}
	reader, err := quic.DialAddr(t.Context(), src.Addr, conf, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.CloseWithError(0, "")
	s, err := reader.OpenStreamSync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := writeRequest(s, request{Handle: src.Handle.String(), Operation: src.Operation}); err != nil {
		t.Fatal(err)
	}
	if _, err := readHeader(s); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(sendTimeout * 5 / 6): // a receipt is waited for until then
		t.Error("the end waits for a receipt")
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
