package uplink

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// keepQUIC dials, proves and watches the QUIC connection until ctx ends.
func (u *Uplink) keepQUIC(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		conn, gone, err := u.raiseQUIC(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			u.note(ViaQUIC, err)
			failures++
			u.pause(ctx, failures)
			continue
		}
		failures = 0
		u.note(ViaQUIC, nil)
		select {
		case <-conn.Context().Done():
			u.quic.drop()
			u.note(ViaQUIC, context.Cause(conn.Context()))
		case <-gone:
			u.note(ViaQUIC, errRetired)
		case <-ctx.Done():
			return
		}
	}
}

var errRetired = errors.New("the cloud takes no more requests on this connection")

func (u *Uplink) raiseQUIC(ctx context.Context) (*quic.Conn, <-chan struct{}, error) {
	ctx, cancel := context.WithTimeout(ctx, u.opt.DialTimeout)
	defer cancel()
	conn, rt, err := u.quic.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	if _, err := u.ping(ctx, rt); err != nil {
		_ = conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "not usable")
		return nil, nil, err
	}
	return conn, u.quic.adopt(conn, rt), nil
}

// pause waits before the next QUIC attempt: the probe interval while HTTP/2
// serves, else an exponential back-off that the loss of HTTP/2 cuts short.
func (u *Uplink) pause(ctx context.Context, failures int) {
	_, via, changed := u.state()
	d := u.backoff(failures)
	if via == ViaH2 {
		d = u.opt.ProbeEvery
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-changed:
			var now Via
			if _, now, changed = u.state(); via == ViaH2 && now == ViaNone {
				return
			}
		}
	}
}

// backoff is exponential with up to a quarter of jitter, so that a fleet does
// not come back at one instant.
func (u *Uplink) backoff(failures int) time.Duration {
	d := u.opt.BackoffFirst << min(failures-1, 10)
	d = min(d, u.opt.BackoffMost)
	return d - time.Duration(rand.Int64N(int64(d)/4+1))
}

// keepH2 keeps HTTP/2 proven for as long as QUIC is not up.
func (u *Uplink) keepH2(ctx context.Context) {
	if u.quic != nil {
		sleep(ctx, u.opt.HeadStart)
	}
	failures := 0
	for ctx.Err() == nil {
		if _, via, changed := u.state(); via == ViaQUIC {
			failures = 0
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		if err := u.checkH2(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			failures++
			u.note(ViaH2, err)
			sleep(ctx, u.backoff(failures))
			continue
		}
		failures = 0
		u.note(ViaH2, nil)
		u.whileH2(ctx, u.opt.CheckEvery)
	}
}

func (u *Uplink) checkH2(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, u.opt.DialTimeout)
	defer cancel()
	took, err := u.ping(ctx, u.h2.tr)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.h2RTT == 0 {
		u.h2RTT = took
	}
	u.h2RTT += (took - u.h2RTT) / 4
	return nil
}

// whileH2 waits for d, or less when HTTP/2 stops being the leg in use.
func (u *Uplink) whileH2(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		_, via, changed := u.state()
		if via != ViaH2 {
			return
		}
		select {
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
