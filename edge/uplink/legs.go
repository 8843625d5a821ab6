package uplink

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// roundTripper is what both legs give for one request.
type roundTripper interface {
	RoundTrip(*http.Request) (*http.Response, error)
}

// maxPingBytes bounds what is read of a ping's answer before the stream is
// given up; the poller reads the snapshot, not the ping.
const maxPingBytes = 64 << 10

// h2Leg is HTTP/2 over TLS on TCP.
type h2Leg struct{ tr *http.Transport }

func newH2Leg(cfg *tls.Config, opt Options) *h2Leg {
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"h2", "http/1.1"}
	return &h2Leg{&http.Transport{
		TLSClientConfig:     cfg,
		ForceAttemptHTTP2:   true,
		DialContext:         (&net.Dialer{Timeout: opt.DialTimeout}).DialContext,
		TLSHandshakeTimeout: opt.DialTimeout,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     30 * time.Second,
		// A dead TCP path must not take the kernel's minutes to show.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 3 * time.Second},
	}}
}

func (l *h2Leg) close() { l.tr.CloseIdleConnections() }

// quicLeg owns one UDP socket and at most one live connection on it.
type quicLeg struct {
	host string // host:port
	tls  *tls.Config
	cfg  *quic.Config
	h3   *http3.Transport

	mu    sync.Mutex
	udp   net.PacketConn
	tr    *quic.Transport
	conn  *quic.Conn // nil when none is proven
	rt    *http3.ClientConn
	gone  chan struct{} // closed when conn is retired
	dials uint64
	past  quic.ConnectionStats // sums over connections that have ended
}

func newQUICLeg(cfg *tls.Config, opt Options, base *url.URL) *quicLeg {
	cfg = cfg.Clone()
	cfg.NextProtos = []string{http3.NextProtoH3}
	port := base.Port()
	if port == "" {
		port = "443"
	}
	return &quicLeg{
		host: net.JoinHostPort(base.Hostname(), port),
		tls:  cfg,
		h3:   &http3.Transport{DisableCompression: true},
		cfg: &quic.Config{
			HandshakeIdleTimeout: opt.DialTimeout,
			KeepAlivePeriod:      opt.KeepAlive,
			MaxIdleTimeout:       opt.IdleTimeout,
			MaxIncomingStreams:   -1, // the server opens none
		},
	}
}

// open binds the UDP socket that all connections share: the port stays the
// same over reconnects, and an address change of the host is a path change.
func (l *quicLeg) open() error {
	udp, err := net.ListenUDP("udp", nil)
	if err != nil {
		return fmt.Errorf("open UDP socket: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.udp, l.tr = udp, &quic.Transport{Conn: udp}
	return nil
}

// dial makes a connection. It is not live before adopt.
func (l *quicLeg) dial(ctx context.Context) (*quic.Conn, *http3.ClientConn, error) {
	addr, err := resolve(ctx, l.host)
	if err != nil {
		return nil, nil, err
	}
	conn, err := l.tr.Dial(ctx, addr, l.tls, l.cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("quic handshake: %w", err)
	}
	return conn, l.h3.NewClientConn(conn), nil
}

func resolve(ctx context.Context, hostport string) (*net.UDPAddr, error) {
	host, portText, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, fmt.Errorf("cloud address: %w", err)
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "udp", portText)
	if err != nil {
		return nil, fmt.Errorf("cloud port: %w", err)
	}
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("cloud host: %w", err)
	}
	best := ips[0]
	for _, ip := range ips {
		if ip.IP.To4() != nil { // an address of the family most paths carry
			best = ip
			break
		}
	}
	return &net.UDPAddr{IP: best.IP, Zone: best.Zone, Port: port}, nil
}

// adopt makes a proven connection the live one and returns a channel that is
// closed when it is retired.
func (l *quicLeg) adopt(conn *quic.Conn, rt *http3.ClientConn) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.rt, l.gone = conn, rt, make(chan struct{})
	l.dials++
	return l.gone
}

// retire stops new requests on a connection that takes no more, as after a
// GOAWAY. Requests in flight end on it by themselves.
func (l *quicLeg) retire(conn *quic.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != conn || conn == nil {
		return
	}
	close(l.gone)
	l.dropLocked()
	time.AfterFunc(retiredLife, func() {
		_ = conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "retired")
	})
}

// retiredLife bounds how long a retired connection may serve old requests.
const retiredLife = 5 * time.Minute

// drop forgets the live connection and keeps its statistics.
func (l *quicLeg) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked()
}

func (l *quicLeg) dropLocked() {
	if l.conn == nil {
		return
	}
	addStats(&l.past, l.conn.ConnectionStats())
	l.conn, l.rt = nil, nil
}

func (l *quicLeg) live() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil && l.conn.Context().Err() == nil
}

// current returns the live connection, or nils.
func (l *quicLeg) current() (*quic.Conn, *http3.ClientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || l.conn.Context().Err() != nil {
		return nil, nil
	}
	return l.conn, l.rt
}

func (l *quicLeg) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "edge stops")
	}
	if l.tr != nil {
		_ = l.tr.Close()
		_ = l.udp.Close()
	}
}

// ping proves a leg by one whole round trip, and returns how long it took.
func (u *Uplink) ping(ctx context.Context, rt roundTripper) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.base.String()+u.opt.PingPath, nil)
	if err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	if u.opt.PingHeader != nil {
		req.Header = u.opt.PingHeader()
	}
	start := time.Now()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	took := time.Since(start)
	_, _ = io.CopyN(io.Discard, resp.Body, maxPingBytes)
	_ = resp.Body.Close()
	if resp.StatusCode >= 400 {
		return 0, fmt.Errorf("ping: the cloud answered %s", resp.Status)
	}
	return took, nil
}
