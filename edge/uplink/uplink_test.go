package uplink_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/testproc"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

// start runs an uplink with short times against a cloud.
func start(t *testing.T, c *cloudtest.Cloud, change func(*uplink.Options)) *uplink.Uplink {
	t.Helper()
	opt := uplink.Options{
		BaseURL: c.URL, TLS: c.DeviceTLS(t), Log: slog.New(slog.DiscardHandler),
		DialTimeout: 5 * time.Second, HeadStart: 50 * time.Millisecond,
		KeepAlive: 100 * time.Millisecond, IdleTimeout: 5 * time.Second,
		ProbeEvery: 100 * time.Millisecond, CheckEvery: 200 * time.Millisecond,
		BackoffFirst: 20 * time.Millisecond, BackoffMost: 100 * time.Millisecond,
	}
	if change != nil {
		change(&opt)
	}
	u, err := uplink.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return u
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func via(u *uplink.Uplink, v uplink.Via) func() bool {
	return func() bool { return u.Stats().Via == v }
}

// post sends body and returns what came back.
func post(t *testing.T, u *uplink.Uplink, body []byte) (*uplink.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	resp, err := u.Do(ctx, uplink.Request{Method: http.MethodPost, Path: "/v1/chat/completions", Body: body,
		Header: http.Header{"Content-Type": {"application/json"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(raw)
}

// The connection's own statistics prove that a request went over QUIC.
func TestRequestsRunOverQUIC(t *testing.T) {
	c := cloudtest.Start(t)
	u := start(t, c, nil)
	eventually(t, "link over QUIC", via(u, uplink.ViaQUIC))
	before := u.Stats()
	body := make([]byte, 200_000)
	for i := range body {
		body[i] = ' '
	}
	resp, _ := post(t, u, append(body, "{}"...))
	if resp.Via != uplink.ViaQUIC || resp.Proto != "HTTP/3.0" {
		t.Errorf("via %s, protocol %s", resp.Via, resp.Proto)
	}
	after := u.Stats()
	if sent := after.QUIC.BytesSent - before.QUIC.BytesSent; sent < uint64(len(body)) {
		t.Errorf("QUIC sent %d bytes for a body of %d", sent, len(body))
	}
	if after.QUICRequests != 1 || after.H2Requests != 0 || after.RTT <= 0 || after.State != uplink.Up {
		t.Errorf("stats: %+v", after)
	}
	if seen := c.Seen(); len(seen) != 1 || seen[0].Proto != "HTTP/3.0" || seen[0].Peer.Name != cloudtest.Device {
		t.Errorf("the cloud saw %+v", seen)
	}
}

// With UDP cut the link falls back to TCP; when UDP is mended it comes back.
// The datagram path proves that nothing went over UDP meanwhile.
func TestFallsBackToTCPAndReturns(t *testing.T) {
	c := cloudtest.Start(t)
	u := start(t, c, nil)
	eventually(t, "link over QUIC", via(u, uplink.ViaQUIC))

	c.UDP.Cut()
	eventually(t, "link over HTTP/2", via(u, uplink.ViaH2))
	passed, quicBytes := c.UDP.Passed(), u.Stats().QUIC.BytesReceived
	resp, _ := post(t, u, []byte(`{}`))
	if resp.Via != uplink.ViaH2 || resp.Proto != "HTTP/2.0" {
		t.Errorf("via %s, protocol %s", resp.Via, resp.Proto)
	}
	s := u.Stats()
	if s.H2Requests != 1 || c.UDP.Passed() != passed || s.QUIC.BytesReceived != quicBytes || s.RTT <= 0 {
		t.Errorf("stats with UDP cut: %+v, datagrams %d then %d", s, passed, c.UDP.Passed())
	}

	c.UDP.Mend()
	eventually(t, "link over QUIC again", via(u, uplink.ViaQUIC))
	if resp, _ = post(t, u, []byte(`{}`)); resp.Via != uplink.ViaQUIC {
		t.Errorf("after mending via %s", resp.Via)
	}
	if s := u.Stats(); s.Connections < 2 || s.QUICRequests != 1 {
		t.Errorf("stats after mending: %+v", s)
	}
}

func TestStartsWithUDPCut(t *testing.T) {
	c := cloudtest.Start(t)
	c.UDP.Cut()
	u := start(t, c, nil)
	// The first request waits for the first leg that works, nothing more.
	if resp, _ := post(t, u, []byte(`{}`)); resp.Via != uplink.ViaH2 {
		t.Errorf("via %s", resp.Via)
	}
}

func TestUDPOff(t *testing.T) {
	c := cloudtest.Start(t)
	u := start(t, c, func(o *uplink.Options) { o.DisableUDP = true })
	if resp, _ := post(t, u, []byte(`{}`)); resp.Via != uplink.ViaH2 {
		t.Errorf("via %s", resp.Via)
	}
	if c.UDP.Passed() != 0 {
		t.Error("datagrams were sent with UDP off")
	}
}

// A request on a connection that dies under it is sent once more, over the
// other leg, and the cloud's answer arrives.
func TestRetriesOnceWhenTheLegDies(t *testing.T) {
	c := cloudtest.Start(t)
	u := start(t, c, nil)
	eventually(t, "link over QUIC", via(u, uplink.ViaQUIC))
	c.UDP.Cut()
	resp, _ := post(t, u, []byte(`{}`))
	if resp.Via != uplink.ViaH2 || resp.Attempts != 2 {
		t.Errorf("via %s after %d attempts", resp.Via, resp.Attempts)
	}
	if seen := c.Seen(); len(seen) != 1 {
		t.Errorf("the cloud saw %d requests", len(seen))
	}
}

// A stream that breaks after its head is not repeated.
func TestNoRetryAfterTheHead(t *testing.T) {
	c := cloudtest.Start(t)
	headCame := make(chan struct{}, 1)
	c.Answer(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-headCame:
		case <-time.After(time.Minute):
		}
		panic(http.ErrAbortHandler)
	})
	for _, off := range []bool{false, true} {
		u := start(t, c, func(o *uplink.Options) { o.DisableUDP = off })
		eventually(t, "link up", func() bool { return u.Stats().State == uplink.Up })
		before := len(c.Seen())
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		resp, err := u.Do(ctx, uplink.Request{Method: http.MethodPost, Path: "/v1/chat/completions", Body: []byte("{}")})
		if err != nil {
			t.Fatal(err)
		}
		headCame <- struct{}{}
		if _, err = io.ReadAll(resp.Body); err == nil {
			t.Error("a cut answer ended cleanly")
		}
		_ = resp.Body.Close()
		cancel()
		if n := len(c.Seen()) - before; n != 1 {
			t.Errorf("UDP off %v: the cloud saw %d requests", off, n)
		}
	}
}

func TestDownAndBack(t *testing.T) {
	c := cloudtest.Start(t)
	u := start(t, c, nil)
	eventually(t, "link up", func() bool { return u.Stats().State == uplink.Up })
	c.Stop()
	eventually(t, "link down", func() bool { return u.Stats().State == uplink.Down })
	_, err := u.Do(context.Background(), uplink.Request{Method: http.MethodGet, Path: "/edge/v1/snapshot"})
	if !errors.Is(err, uplink.ErrDown) {
		t.Errorf("error %v, want ErrDown", err)
	}
	if s := u.Stats(); s.LastError == "" || s.QUICRequests+s.H2Requests != 0 {
		t.Errorf("a link that is known to be down tried a request, or shows no error: %+v", s)
	}
}

// A certificate that the cloud does not take is not an up link: the QUIC
// handshake alone proves nothing.
func TestForeignCertificateIsDown(t *testing.T) {
	c, other := cloudtest.Start(t), cloudtest.Start(t)
	u := start(t, c, func(o *uplink.Options) {
		foreign := other.DeviceTLS(t)
		foreign.RootCAs = c.Authority.Pool()
		o.TLS = foreign
	})
	eventually(t, "link down", func() bool { return u.Stats().State == uplink.Down })
	if len(c.Seen()) != 0 {
		t.Error("a request of a foreign device was served")
	}
}

// An imposter with another authority never gets a request.
func TestForeignCloudIsDown(t *testing.T) {
	c, other := cloudtest.Start(t), cloudtest.Start(t)
	u := start(t, c, func(o *uplink.Options) { o.TLS = other.DeviceTLS(t) })
	eventually(t, "link down", func() bool { return u.Stats().State == uplink.Down })
}

func TestNewRefusesBadURLs(t *testing.T) {
	c := cloudtest.Start(t)
	for _, u := range []string{"", "http://a:1", "https://", "https://u:p@a", "https://a/path", "https://a?x=1", "::"} {
		if _, err := uplink.New(uplink.Options{BaseURL: u, TLS: c.DeviceTLS(t), Log: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("%q was accepted", u)
		}
	}
}
