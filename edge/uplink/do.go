package uplink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// Request is one request to the cloud. The body is whole, so that it can be
// sent a second time.
type Request struct {
	Method string
	Path   string // with a leading slash
	Header http.Header
	Body   []byte
	Once   bool // it is not to be sent a second time
}

// Response is the cloud's answer. The caller closes Body.
type Response struct {
	*http.Response
	Via      Via // the leg that carried it
	Attempts int // 1, or 2 after a retry
}

// Do sends a request on the best leg. When a leg breaks before any byte of the
// answer it is sent once more, on the leg that is best then; an answer of any
// status is never repeated. ErrDown when no leg is up; while the state is still
// unknown it waits for the first attempts to end.
func (u *Uplink) Do(ctx context.Context, r Request) (*Response, error) {
	return (&Group{[]*Uplink{u}}).Do(ctx, r)
}

func (u *Uplink) once(ctx context.Context, r Request) (*http.Response, Via, error) {
	via, rt, conn, err := u.pick(ctx)
	if err != nil {
		return nil, ViaNone, err
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, u.base.String()+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return nil, via, fmt.Errorf("request to the cloud: %w", err)
	}
	req.GetBody = nil // retries are decided here, not inside a transport
	if r.Header != nil {
		req.Header = r.Header.Clone()
	}
	u.mu.Lock()
	u.carried[via]++
	u.mu.Unlock()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		u.suspect(ctx, via, conn, err)
		return nil, via, fmt.Errorf("request to the cloud over %s: %w", via, err)
	}
	return resp, via, nil
}

// pick returns the best leg, and its connection when that is QUIC. It waits
// only while nothing is known.
func (u *Uplink) pick(ctx context.Context) (Via, roundTripper, *quic.Conn, error) {
	for {
		switch u.Wait(ctx) {
		case Unknown:
			return ViaNone, nil, nil, fmt.Errorf("%w: %w", ErrDown, ctx.Err())
		case Down:
			return ViaNone, nil, nil, u.downErr()
		}
		if u.quic != nil {
			if conn, rt := u.quic.current(); rt != nil {
				return ViaQUIC, rt, conn, nil
			}
		}
		if _, via, _ := u.state(); via == ViaH2 {
			return ViaH2, u.h2.tr, nil, nil
		}
	}
}

func (u *Uplink) downErr() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.lastErr == nil {
		return ErrDown
	}
	return fmt.Errorf("%w: %w", ErrDown, u.lastErr)
}

// suspect takes a leg out after it broke under a request, unless the caller
// itself ended the request. A QUIC connection on which only this request's
// stream was reset stays in use.
func (u *Uplink) suspect(ctx context.Context, via Via, conn *quic.Conn, err error) {
	if ctx.Err() != nil {
		return
	}
	if via == ViaH2 {
		u.doubt(err)
		return
	}
	_, reset := errors.AsType[*quic.StreamError](err)
	h3err, isH3 := errors.AsType[*http3.Error](err)
	if reset || (isH3 && h3err.ErrorCode != http3.ErrCodeRequestRejected) {
		return
	}
	u.quic.retire(conn)
}

// Stats describe the link. Tests and operators read from them which transport
// carried the traffic.
type Stats struct {
	State State         `json:"state"`
	Via   Via           `json:"via"`
	RTT   time.Duration `json:"rtt_ns"` // smoothed; 0 is unknown
	// QUICRequests and H2Requests count the requests sent on each leg, pings
	// left out.
	QUICRequests uint64 `json:"quic_requests"`
	H2Requests   uint64 `json:"h2_requests"`
	// Connections counts the QUIC connections that were proven.
	Connections uint64 `json:"quic_connections"`
	// QUIC sums bytes and packets over all proven connections; RTTs and window
	// are the live connection's.
	QUIC      quic.ConnectionStats `json:"quic"`
	LastError string               `json:"last_error,omitempty"`
}

// Stats returns the link's statistics now.
func (u *Uplink) Stats() Stats {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := Stats{
		State: u.stateLocked(), Via: u.viaLocked(),
		QUICRequests: u.carried[ViaQUIC], H2Requests: u.carried[ViaH2],
	}
	if u.lastErr != nil {
		s.LastError = u.lastErr.Error()
	}
	if u.quic != nil {
		s.QUIC, s.Connections = u.quic.stats()
	}
	switch s.Via {
	case ViaQUIC:
		s.RTT = s.QUIC.SmoothedRTT
	case ViaH2:
		s.RTT = u.h2RTT
	}
	return s
}

func (l *quicLeg) stats() (quic.ConnectionStats, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := l.past
	if l.conn != nil {
		addStats(&sum, l.conn.ConnectionStats())
	}
	return sum, l.dials
}

// addStats sums the counters and takes the newer gauges.
func addStats(sum *quic.ConnectionStats, s quic.ConnectionStats) {
	s.BytesSent += sum.BytesSent
	s.PacketsSent += sum.PacketsSent
	s.BytesReceived += sum.BytesReceived
	s.PacketsReceived += sum.PacketsReceived
	s.BytesLost += sum.BytesLost
	s.PacketsLost += sum.PacketsLost
	*sum = s
}
