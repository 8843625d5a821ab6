package poolse2e

import (
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// TestBilledOnce cuts an edge node's way to a gateway between the settlement of an
// answer and its head: the gateway has answered and written its row, the node asks
// the other gateway for the same attempt, and the ledger holds one row that is paid
// for.
func TestBilledOnce(t *testing.T) {
	f := emptyFleet(t, loopback{})
	f.instance(t, "m1", "mixed", "fake-engine", "--model", model, "--weir", "--name", "m1", "--role", "mixed", "--ttft", "1ms", "--itl", "1ms", "--log-level", "error")
	f.gateways(t, true)
	w := newWire(t, f.tlsURL(t, "g1"))
	f.edge(t, w.url(), f.tlsURL(t, "g2"))
	rows := func(gateway, result string) float64 {
		return f.gauge(gateway, `weir_ledger_rows_total{result="`+result+`"}`)
	}
	for i, stream := range []bool{false, true} {
		eventually(t, "the first gateway is asked", func() bool {
			before := rows("g1", "inserted")
			f.ask(t.Context(), "edge", 1, 8, false)
			eventually(t, "the row is written", func() bool {
				return f.gauge("g1", "weir_ledger_waiting_rows")+f.gauge("g2", "weir_ledger_waiting_rows") == 0
			})
			return rows("g1", "inserted") > before
		})
		before, twice := rows("g1", "inserted"), rows("g1", "duplicate")+rows("g2", "duplicate")
		w.muted.Store(true)
		got := make(chan answer, 1)
		go func() { got <- f.ask(t.Context(), "edge", 1, 8, stream) }()
		eventually(t, "the first gateway has written its row", func() bool { return rows("g1", "inserted") == before+1 })
		w.cut()
		a := <-got
		if !a.whole() || a.attempts != 2 {
			t.Fatalf("stream %v: %+v", stream, a)
		}
		eventually(t, "the second answer is known for one", func() bool { return rows("g1", "duplicate")+rows("g2", "duplicate") == twice+1 })
		if outcomes := f.outcomes(t, a.operation, 1); outcomes != "ok" {
			t.Errorf("round %d: the ledger says %q", i, outcomes)
		}
	}
}

// wire carries connections to a gateway, until it is muted: then nothing that the
// gateway says arrives.
type wire struct {
	net.Listener
	to    string
	muted atomic.Bool

	mu   sync.Mutex
	ends []net.Conn
	all  sync.WaitGroup
}

func newWire(t *testing.T, gateway string) *wire {
	t.Helper()
	u, err := url.Parse(gateway)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{to: u.Host}
	if w.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w.all.Go(w.serve)
	t.Cleanup(func() { w.Close(); w.cut(); w.all.Wait() })
	return w
}

func (w *wire) url() string { return "https://" + w.Addr().String() }

func (w *wire) serve() {
	for {
		client, err := w.Accept()
		if err != nil {
			return
		}
		gateway, err := net.Dial("tcp", w.to)
		if err != nil {
			client.Close()
			continue
		}
		w.mu.Lock()
		w.ends = append(w.ends, client, gateway)
		w.mu.Unlock()
		w.all.Go(func() { defer gateway.Close(); _, _ = io.Copy(gateway, client) })
		w.all.Go(func() { defer client.Close(); w.hear(client, gateway) })
	}
}

// hear copies what the gateway says.
func (w *wire) hear(client io.Writer, gateway io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := gateway.Read(buf)
		if n > 0 && !w.muted.Load() {
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut ends all connections; new ones are heard again.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.ends {
		c.Close()
	}
	w.ends = nil
	w.muted.Store(false)
}
