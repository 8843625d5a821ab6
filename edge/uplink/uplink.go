package uplink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// Via names the transport that carried a request.
type Via string

// The transports.
const (
	ViaNone Via = ""
	ViaQUIC Via = "quic"
	ViaH2   Via = "h2"
)

// State is what is known of the link to the cloud.
type State string

// The states. Unknown holds only until the first attempts have ended.
const (
	Unknown State = "unknown"
	Up      State = "up"
	Down    State = "down"
)

// ErrDown says that no leg reaches the cloud now.
var ErrDown = errors.New("the cloud cannot be reached")

// Options configure an Uplink. Zero durations take the defaults named.
type Options struct {
	// BaseURL is the cloud, "https://host:port".
	BaseURL string
	// TLS holds the cloud's CA and the device's certificate.
	TLS *tls.Config
	// DisableUDP keeps to HTTP/2.
	DisableUDP bool
	// PingPath answers GET below 400 when the cloud takes this device.
	PingPath string // default "/edge/v1/snapshot"
	// PingHeader gives headers that keep the ping's answer small; may be nil.
	PingHeader func() http.Header
	Log        *slog.Logger

	DialTimeout  time.Duration // of one leg, ping included: 2 s
	HeadStart    time.Duration // of QUIC over HTTP/2: 300 ms
	KeepAlive    time.Duration // of the QUIC connection: 2.5 s
	IdleTimeout  time.Duration // after which a silent QUIC connection is lost: 6 s
	ProbeEvery   time.Duration // QUIC attempts while HTTP/2 serves: 15 s
	CheckEvery   time.Duration // pings of HTTP/2 while it serves: 5 s
	BackoffFirst time.Duration // between failed attempts: 250 ms
	BackoffMost  time.Duration // 5 s
}

func (o *Options) setDefaults() {
	if o.PingPath == "" {
		o.PingPath = "/edge/v1/snapshot"
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&o.DialTimeout, 2 * time.Second}, {&o.HeadStart, 300 * time.Millisecond},
		{&o.KeepAlive, 2500 * time.Millisecond}, {&o.IdleTimeout, 6 * time.Second},
		{&o.ProbeEvery, 15 * time.Second}, {&o.CheckEvery, 5 * time.Second},
		{&o.BackoffFirst, 250 * time.Millisecond}, {&o.BackoffMost, 5 * time.Second},
	} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
}

// Uplink is one edge node's way to the cloud. Run keeps it up; the other
// methods are safe for concurrent use.
type Uplink struct {
	opt  Options
	base *url.URL
	quic *quicLeg // nil when UDP is off
	h2   *h2Leg

	mu      sync.Mutex
	changed chan struct{} // closed and replaced on every change of state
	h2Up    bool
	tried   map[Via]bool // legs that have ended an attempt since they were last in doubt
	said    string       // what was logged last
	lastErr error
	h2RTT   time.Duration
	carried map[Via]uint64
}

// New checks the options. It opens no socket; Run does.
func New(opt Options) (*Uplink, error) {
	opt.setDefaults()
	base, err := url.Parse(opt.BaseURL)
	if err != nil || base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("cloud url %q: want https://host:port", opt.BaseURL)
	}
	if base.User != nil || (base.Path != "" && base.Path != "/") || base.RawQuery != "" {
		return nil, fmt.Errorf("cloud url of host %q: want https://host:port without user, path or query", base.Host)
	}
	if opt.TLS == nil || opt.Log == nil {
		return nil, errors.New("uplink: TLS configuration and logger are needed")
	}
	u := &Uplink{
		opt: opt, base: &url.URL{Scheme: "https", Host: base.Host},
		changed: make(chan struct{}), tried: map[Via]bool{}, carried: map[Via]uint64{},
	}
	cfg := opt.TLS.Clone()
	cfg.MinVersion = tls.VersionTLS13
	cfg.ClientSessionCache = nil // no resumption: every connection proves the certificate anew
	if cfg.ServerName == "" {
		cfg.ServerName = base.Hostname()
	}
	u.h2 = newH2Leg(cfg, opt)
	if !opt.DisableUDP {
		u.quic = newQUICLeg(cfg, opt, base)
	}
	return u, nil
}

// Run keeps the link up until ctx ends, then closes it.
func (u *Uplink) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { u.keepH2(ctx) })
	if u.quic != nil {
		if err := u.quic.open(); err != nil {
			u.opt.Log.Warn("uplink: no UDP socket, staying with HTTP/2", "err", err)
			u.note(ViaQUIC, err)
		} else {
			wg.Go(func() { u.keepQUIC(ctx) })
		}
	}
	wg.Wait()
	u.h2.close()
	if u.quic != nil {
		u.quic.close()
	}
	return nil
}

// note records the end of an attempt on a leg; err is nil for success.
func (u *Uplink) note(via Via, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tried[via] = true
	switch {
	case err != nil:
		u.lastErr = err
	case via == ViaQUIC:
		// HTTP/2 idles from now on: when QUIC is lost it is in doubt, not down.
		u.tried[ViaH2] = false
	}
	if via == ViaH2 || err == nil {
		u.h2Up = via == ViaH2 && err == nil
	}
	u.announceLocked(err)
}

// doubt takes HTTP/2 out until its next ping has ended.
func (u *Uplink) doubt(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.h2Up, u.tried[ViaH2], u.lastErr = false, false, err
	u.announceLocked(err)
}

// announceLocked wakes the waiters and logs a change.
func (u *Uplink) announceLocked(err error) {
	close(u.changed)
	u.changed = make(chan struct{})
	state, via := u.stateLocked(), u.viaLocked()
	now := string(state) + string(via)
	if now == u.said || state == Unknown {
		return
	}
	u.said = now
	if state == Down {
		u.opt.Log.Warn("uplink is down", "err", err)
		return
	}
	u.opt.Log.Info("uplink is up", "via", via)
}

func (u *Uplink) stateLocked() State {
	switch {
	case u.viaLocked() != ViaNone:
		return Up
	case u.tried[ViaH2] && (u.quic == nil || u.tried[ViaQUIC]):
		return Down
	default:
		return Unknown
	}
}

func (u *Uplink) viaLocked() Via {
	switch {
	case u.quic != nil && u.quic.live():
		return ViaQUIC
	case u.h2Up:
		return ViaH2
	}
	return ViaNone
}

// state returns the state, the leg in use and a channel that is closed at the
// next change.
func (u *Uplink) state() (State, Via, <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.stateLocked(), u.viaLocked(), u.changed
}

// Wait blocks until the state is no longer Unknown, or ctx ends.
func (u *Uplink) Wait(ctx context.Context) State {
	for {
		s, _, changed := u.state()
		if s != Unknown {
			return s
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return s
		}
	}
}
