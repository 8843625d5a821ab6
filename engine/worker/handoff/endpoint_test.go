package handoff

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sync/semaphore"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/testproc"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

func (i *Item) expiry() time.Time {
	return time.UnixMilli(time.Now().UnixMilli()).Add(30 * time.Second)
}

// end is an Endpoint under test.
type end struct {
	*Endpoint
	store  *Store
	holder *pki.Static
	addr   string
}

// ends starts endpoints of one authority.
func ends(t testing.TB, info engine.Info, n int) (*pki.Authority, []*end) {
	t.Helper()
	a, err := pki.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	out := make([]*end, n)
	for i := range out {
		out[i] = startEnd(t, a, info)
	}
	return a, out
}

func holder(t testing.TB, a *pki.Authority, role pki.Role) *pki.Static {
	t.Helper()
	chain, key, err := a.IssuePEM(pki.Spec{Peer: pki.Peer{Role: role, Name: "w"}, Hosts: pki.LoopbackHosts()})
	if err != nil {
		t.Fatal(err)
	}
	h, err := pki.ParseStatic(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// patience is for peers that answer, as slow as the machine may be, and brief for
// those that do not.
const (
	patience = time.Minute
	brief    = 3 * time.Second
)

func startEnd(t testing.TB, a *pki.Authority, info engine.Info) *end {
	t.Helper()
	h := holder(t, a, pki.RoleWorker)
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(1<<30, time.Minute, nil)
	e, err := NewEndpoint(Options{Conn: conn, Server: pki.MutualConfig(h, a.Pool(), pki.RoleWorker),
		Client: pki.RoleClientConfig(h, a.Pool(), pki.RoleWorker), Store: store, MaxPulled: 64 << 20, Patience: patience, Info: info,
		Metrics: metrics.New("m", 1), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, e.Close()); err != nil {
			t.Error(err)
		}
		store.Close()
	})
	return &end{e, store, h, conn.LocalAddr().String()}
}

// put stores a hand-off of a prompt and returns where it is.
func (e *end) put(t testing.TB, prompt []engine.Token, kv int) Source {
	t.Helper()
	it := NewItem(loop.Handoff{Tokens: prompt, Logits: make([]float32, e.o.Info.Vocab), KV: [][]byte{make([]byte, kv)}}, e.o.Info.Fingerprint)
	h, _, err := e.store.put("op", it)
	if err != nil {
		t.Fatal(err)
	}
	return Source{Addr: e.addr, Epoch: "e", Handle: h, Operation: "op",
		Extra: &Extra{Bytes: it.size(), SHA256: it.Header.SHA256, Fingerprint: it.Header.Fingerprint}}
}

func reasonOf(err error) string {
	var pe *PullError
	if errors.As(err, &pe) {
		return pe.Reason
	}
	return ""
}

func TestPullsTogether(t *testing.T) {
	_, e := ends(t, testInfo, 3)
	var wg sync.WaitGroup
	for i := range 40 {
		prompt := make([]engine.Token, 1000+i)
		src := e[i%2].put(t, prompt, 8*len(prompt))
		wg.Go(func() {
			h, err := e[2].Pull(context.Background(), src, prompt)
			if err != nil || len(h.KV[0]) != 8*len(prompt) || !slices.Equal(h.Tokens, prompt) {
				t.Errorf("pull %d: %v", i, err)
				return
			}
			h.Done()
		})
	}
	wg.Wait()
	e[2].mu.Lock()
	if len(e[2].peers) != 2 {
		t.Errorf("%d connections, want one per peer", len(e[2].peers))
	}
	e[2].mu.Unlock()
	for _, x := range e[:2] {
		deadline := time.Now().Add(time.Minute)
		for x.store.Bytes() != 0 && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if x.store.Bytes() != 0 {
			t.Errorf("%d bytes left in a store", x.store.Bytes())
		}
	}
}

// TestNoRoom: what was pulled and is not in the KV cache yet is bounded; room
// comes back when the loop has taken it over.
func TestNoRoom(t *testing.T) {
	_, e := ends(t, testInfo, 2)
	e[1].pulled = semaphore.NewWeighted(100)
	prompt := []engine.Token{1, 2}
	first, err := e[1].Pull(context.Background(), e[0].put(t, prompt, 40), prompt)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e[1].Pull(context.Background(), e[0].put(t, prompt, 40), prompt); reasonOf(err) != metrics.FallbackBusy {
		t.Errorf("second: %v", err)
	}
	first.Done()
	first.Done()
	if _, err := e[1].Pull(context.Background(), e[0].put(t, prompt, 40), prompt); err != nil {
		t.Errorf("third: %v", err)
	}
}

// TestPullAgainElsewhere: a reader that fails, at any point, leaves the hand-off
// for another worker; after delivery nobody gets it.
func TestPullAgainElsewhere(t *testing.T) {
	a, e := ends(t, testInfo, 2)
	prompt := make([]engine.Token, 2000)
	src := e[0].put(t, prompt, 16*len(prompt))
	for name, fail := range map[string]func(*quic.Stream){
		"before the header": func(s *quic.Stream) { s.CancelRead(1); s.CancelWrite(1) },
		"in the payload":    func(s *quic.Stream) { _, _ = io.CopyN(io.Discard, s, 3000); s.CancelRead(1); s.CancelWrite(1) },
		"no receipt":        func(s *quic.Stream) { _, _ = io.CopyN(io.Discard, s, 30000); _ = s.Close(); s.CancelRead(1) },
		"silence":           func(*quic.Stream) {}, // the next reader takes its place
	} {
		conf := pki.RoleClientConfig(holder(t, a, pki.RoleWorker), a.Pool(), pki.RoleWorker)
		conf.NextProtos = []string{ALPN}
		conn, err := quic.DialAddr(context.Background(), src.Addr, conf, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.CloseWithError(0, "")
		s, err := conn.OpenStreamSync(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := writeRequest(s, request{Handle: src.Handle.String(), Operation: src.Operation}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := readHeader(s); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		fail(s)
	}
	h, err := e[1].Pull(context.Background(), src, prompt)
	if err != nil {
		t.Fatal(err)
	}
	h.Done()
	if _, err := e[1].Pull(context.Background(), src, prompt); reasonOf(err) != metrics.FallbackGone {
		t.Errorf("after delivery: %v", err)
	}
	tr := e[1].Transfers()
	if len(tr) != 1 || tr[0].Peer != src.Addr || tr[0].Pulls != 1 || tr[0].Failures != 1 || tr[0].Bytes != src.Extra.Bytes || tr[0].Seconds <= 0 {
		t.Errorf("transfers %+v", tr)
	}
}

// TestRestartedPeer: a new epoch at the same address gets a new connection.
func TestRestartedPeer(t *testing.T) {
	_, e := ends(t, testInfo, 2)
	prompt := []engine.Token{1, 2}
	src := e[0].put(t, prompt, 16)
	if _, err := e[1].Pull(context.Background(), src, prompt); err != nil {
		t.Fatal(err)
	}
	src = e[0].put(t, prompt, 16)
	src.Epoch = "after"
	if _, err := e[1].Pull(context.Background(), src, prompt); err != nil {
		t.Fatal(err)
	}
	if e[1].mu.Lock(); len(e[1].peers) != 1 {
		t.Errorf("%d connections", len(e[1].peers))
	}
	e[1].mu.Unlock()
}

// rogue serves whatever behave does with a stream, behind a worker's
// certificate.
func rogue(t *testing.T, a *pki.Authority, behave func(*quic.Stream)) string {
	t.Helper()
	conf := pki.MutualConfig(holder(t, a, pki.RoleWorker), a.Pool(), pki.RoleWorker)
	conf.NextProtos = []string{ALPN}
	ln, err := quic.ListenAddr("127.0.0.1:0", conf, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); _ = ln.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() {
				for {
					s, err := conn.AcceptStream(ctx)
					if err != nil {
						return
					}
					behave(s)
				}
			})
		}
	})
	return ln.Addr().String()
}

func TestRoguePeer(t *testing.T) {
	a, e := ends(t, testInfo, 2)
	patient, hasty := e[0], e[1]
	hasty.o.Patience = brief
	prompt := []engine.Token{1, 2}
	good := NewItem(loop.Handoff{Tokens: prompt, Logits: make([]float32, 5), KV: [][]byte{make([]byte, 16)}}, testInfo.Fingerprint)
	foreign := NewItem(loop.Handoff{Tokens: []engine.Token{1, 3}, Logits: make([]float32, 5), KV: [][]byte{make([]byte, 16)}}, testInfo.Fingerprint)
	for _, tt := range []struct {
		name, reason string
		reader       *end
		behave       func(*quic.Stream)
	}{
		{"closes", metrics.FallbackTransfer, patient, func(s *quic.Stream) { _ = s.Close() }},
		{"resets", metrics.FallbackTransfer, patient, func(s *quic.Stream) { s.CancelWrite(7) }},
		{"says nothing", metrics.FallbackTransfer, hasty, func(*quic.Stream) {}},
		{"noise", metrics.FallbackTransfer, patient, func(s *quic.Stream) { _, _ = s.Write([]byte("HTTP/1.1 200 OK\r\n\r\n")) }},
		{"promises terabytes", metrics.FallbackVerify, patient, func(s *quic.Stream) {
			h := good.Header
			h.KVParts = []int64{1 << 40}
			_ = writeHeader(s, h)
		}},
		{"stops half way", metrics.FallbackTransfer, patient, func(s *quic.Stream) {
			_ = writeHeader(s, good.Header)
			_, _ = s.Write(make([]byte, 10))
			_ = s.Close()
		}},
		{"other bytes", metrics.FallbackVerify, patient, func(s *quic.Stream) {
			_ = writeHeader(s, good.Header)
			_, _ = s.Write(make([]byte, good.size()))
			_ = s.Close()
		}},
		{"another prompt", metrics.FallbackVerify, patient, func(s *quic.Stream) {
			_ = errors.Join(writeHeader(s, foreign.Header), foreign.writePayload(s), s.Close())
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			src := Source{Addr: rogue(t, a, func(s *quic.Stream) {
				go func() { _, _ = io.Copy(io.Discard, s) }()
				tt.behave(s)
			}), Epoch: tt.name}
			h, err := tt.reader.Pull(context.Background(), src, prompt)
			if h != nil || reasonOf(err) != tt.reason {
				t.Errorf("got %v, reason %q, want %q", err, reasonOf(err), tt.reason)
			}
		})
	}
}

// TestSilentPeer: a peer that vanished without a word (kill -9, cut cable) costs
// a bounded time, on a warm connection as well as on a new one.
func TestSilentPeer(t *testing.T) {
	a, e := ends(t, testInfo, 1)
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	wire := &cut{PacketConn: conn}
	h := holder(t, a, pki.RoleWorker)
	store := NewStore(1<<20, time.Minute, nil)
	defer store.Close()
	peer, err := NewEndpoint(Options{Conn: wire, Server: pki.MutualConfig(h, a.Pool(), pki.RoleWorker),
		Client: pki.RoleClientConfig(h, a.Pool(), pki.RoleWorker), Store: store, MaxPulled: 64 << 20, Patience: patience, Info: testInfo, Metrics: metrics.New("m", 1), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- peer.Run(ctx) }()
	defer func() { cancel(); <-done; _ = peer.Close() }()
	p := &end{Endpoint: peer, store: store, addr: conn.LocalAddr().String()}
	prompt := []engine.Token{1, 2}
	if _, err := e[0].Pull(ctx, p.put(t, prompt, 16), prompt); err != nil {
		t.Fatal(err)
	}
	wire.cut()
	e[0].o.Patience = brief
	_, err = e[0].Pull(ctx, p.put(t, prompt, 16), prompt)
	if reasonOf(err) != metrics.FallbackTransfer || !errors.Is(err, os.ErrDeadlineExceeded) { // the patience, not the connection's idle time
		t.Errorf("warm connection: %v", err)
	}
	_, err = e[0].Pull(ctx, p.put(t, prompt, 16), prompt)
	if reasonOf(err) != metrics.FallbackDial {
		t.Errorf("new connection: %v", err)
	}
}

// cut is a socket whose packets can be made to vanish.
type cut struct {
	net.PacketConn
	mu   sync.Mutex
	gone bool
}

func (c *cut) cut() { c.mu.Lock(); c.gone = true; c.mu.Unlock() }

func (c *cut) WriteTo(b []byte, to net.Addr) (int, error) {
	c.mu.Lock()
	gone := c.gone
	c.mu.Unlock()
	if gone {
		return len(b), nil
	}
	return c.PacketConn.WriteTo(b, to)
}

func TestPullIsCancelled(t *testing.T) {
	a, e := ends(t, testInfo, 1)
	asked := make(chan struct{})
	addr := rogue(t, a, func(s *quic.Stream) { close(asked) })
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-asked; cancel() }()
	if _, err := e[0].Pull(ctx, Source{Addr: addr}, []engine.Token{1}); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the end of the stream before the patience", err)
	}
}

// BenchmarkPull moves a hand-off of 16 MiB over loopback, certificates, hashes
// and all.
func BenchmarkPull(b *testing.B) {
	info := engine.Info{Vocab: 259, KVBytesPerToken: 16 << 10, Fingerprint: testInfo.Fingerprint}
	_, e := ends(b, info, 2)
	prompt := make([]engine.Token, 1024)
	kv := make([]byte, 16<<20)
	it := NewItem(loop.Handoff{Tokens: prompt, Logits: make([]float32, info.Vocab), KV: [][]byte{kv}}, info.Fingerprint)
	b.SetBytes(it.size())
	b.ReportAllocs()
	for b.Loop() {
		h, _, err := e[0].store.put("op", it)
		if err != nil {
			b.Fatal(err)
		}
		got, err := e[1].Pull(context.Background(), Source{Addr: e[0].addr, Epoch: "e", Handle: h, Operation: "op"}, prompt)
		if err != nil {
			b.Fatal(err)
		}
		got.Done()
	}
}
