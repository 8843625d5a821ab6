package uplink_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/uplink"
)

// startGroup runs a group over two gateways, with both links up.
func startGroup(t *testing.T, a, b *cloudtest.Cloud, udpOff bool) *uplink.Group {
	t.Helper()
	g, err := uplink.NewGroup([]string{a.URL, b.URL}, uplink.Options{
		TLS: a.DeviceTLS(t), Log: slog.New(slog.DiscardHandler), DisableUDP: udpOff,
		DialTimeout: 5 * time.Second, HeadStart: 50 * time.Millisecond, KeepAlive: 100 * time.Millisecond, IdleTimeout: 5 * time.Second,
		CheckEvery: 200 * time.Millisecond, BackoffFirst: 20 * time.Millisecond, BackoffMost: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	eventually(t, "both links up", g.AllUp)
	return g
}

func ask(t *testing.T, g *uplink.Group) (*uplink.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	resp, err := g.Do(ctx, uplink.Request{Method: http.MethodPost, Path: "/v1/chat/completions", Body: []byte("{}"), Header: http.Header{"X-Weir-Operation": {"op"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body) // a cut body is what some tests want
	return resp, string(raw)
}

// The gateway under a request dies before its first byte: the same operation goes
// to the other one, once, and later requests go there at once.
func TestAnotherGatewayTakesOver(t *testing.T) {
	for _, udpOff := range []bool{false, true} {
		a := cloudtest.Start(t)
		b := a.Twin(t)
		g := startGroup(t, a, b, udpOff)
		if resp, _ := ask(t, g); resp.Attempts != 1 || len(a.Seen()) != 1 || len(b.Seen()) != 0 {
			t.Errorf("UDP off %v: the first gateway is not preferred: %d and %d requests", udpOff, len(a.Seen()), len(b.Seen()))
		}
		dies := make(chan struct{}, 1)
		a.Answer(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case dies <- struct{}{}:
			default:
			}
			<-r.Context().Done()
		})
		go func() { <-dies; a.Stop() }()
		resp, _ := ask(t, g)
		seen := b.Seen()
		if resp.Attempts != 2 || len(a.Seen()) != 2 || len(seen) != 1 || seen[0].Header.Get("X-Weir-Operation") != "op" {
			t.Errorf("UDP off %v: attempts %d, the gateways saw %d and %d", udpOff, resp.Attempts, len(a.Seen()), len(seen))
		}
		if resp, _ = ask(t, g); resp.StatusCode != http.StatusOK || len(b.Seen()) != 2 || g.Stats().State != uplink.Up {
			t.Errorf("UDP off %v: afterwards %d requests, %+v", udpOff, len(b.Seen()), g.Stats())
		}
	}
}

// What had begun to answer is not asked again elsewhere.
func TestNoOtherGatewayAfterTheHead(t *testing.T) {
	a := cloudtest.Start(t)
	b := a.Twin(t)
	g := startGroup(t, a, b, true)
	a.Answer(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	if resp, _ := ask(t, g); resp.Attempts != 1 || len(b.Seen()) != 0 {
		t.Errorf("attempts %d, the other gateway saw %d", resp.Attempts, len(b.Seen()))
	}
}

// What is to be sent once is not sent again when its gateway dies under it.
func TestSentOnce(t *testing.T) {
	a := cloudtest.Start(t)
	b := a.Twin(t)
	g := startGroup(t, a, b, true)
	a.Answer(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if resp, err := g.Do(ctx, uplink.Request{Method: http.MethodPost, Path: "/v1/chat/completions", Once: true}); err == nil || len(a.Seen())+len(b.Seen()) != 1 {
		t.Errorf("%v, %v: the gateways saw %d and %d", resp, err, len(a.Seen()), len(b.Seen()))
	}
}

func TestGroupNeedsAGateway(t *testing.T) {
	if _, err := uplink.NewGroup(nil, uplink.Options{}); err == nil {
		t.Error("no gateway is enough")
	}
}
