package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/internal/contract"
)

const (
	// leaseCallTimeout bounds one call about a lease.
	leaseCallTimeout = 2 * time.Second
	leasePath        = "/instance/v1/lease"
)

// lease is a gateway's hold on an unread hand-off. The gateway owns it between
// the two legs: it renews the lease while the decode leg waits or another is
// tried, and gives it up once the answer runs or the request ends. A gateway that
// dies renews nothing, and the hand-off is freed when its time is over.
type lease struct {
	g         *Gateway
	leg       *pool.Leg // where the hand-off lies
	handle    string    // "": the engine has no leases to renew
	operation string

	mu    sync.Mutex
	until time.Time
	ended bool
	timer *time.Timer
}

// hold takes a lease on a hand-off that has just been offered, and gives up the
// one before.
func (a *admitted) hold(leg *pool.Leg, params json.RawMessage) *lease {
	var p struct {
		Handle string `json:"remote_request_id"`
	}
	life := a.g.opts.Timeouts.Lease
	l := &lease{g: a.g, leg: leg, operation: a.op, until: time.Now().Add(life)}
	if leg.Resumes && json.Unmarshal(params, &p) == nil && p.Handle != "" {
		l.handle = p.Handle
		l.timer = time.AfterFunc(life/3, func() { l.renew() })
	}
	a.letGo()
	a.tries.lease = l
	return l
}

// letGo gives the request's lease up, if it has one.
func (a *admitted) letGo() { a.tries.lease.end(true) }

// runs reports whether the hand-off may be read at now. A lease of nothing does
// not run.
func (l *lease) runs(now time.Time) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.ended && now.Before(l.until)
}

// renew asks for more time, reports whether the hand-off is still unread, and
// asks again in time.
func (l *lease) renew() bool {
	if l == nil || l.handle == "" {
		return false
	}
	began := time.Now()
	status := l.call("renew")
	l.mu.Lock()
	defer l.mu.Unlock()
	life := l.g.opts.Timeouts.Lease
	switch {
	case l.ended:
		return false
	case status == http.StatusOK:
		l.until = began.Add(life)
		l.timer.Reset(life / 3)
	case status == http.StatusNotFound: // it has been read
		l.ended = true
		l.timer.Stop()
	case began.Before(l.until): // the instance may come back
		l.timer.Reset(life / 12)
	}
	return status == http.StatusOK
}

// end gives the hand-off up: after this nobody reads it. The instance is told so
// unless it knows.
func (l *lease) end(tell bool) {
	if l == nil || l.handle == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	l.timer.Stop()
	if tell {
		go l.call("release") // if it fails, time frees the hand-off
	}
}

// call posts an action and returns the answer's status, 0 without one.
func (l *lease) call(action string) int {
	ctx, cancel := context.WithTimeout(context.Background(), leaseCallTimeout)
	defer cancel()
	body := mustJSON(map[string]string{"handle": l.handle, "operation": l.operation, "action": action})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.leg.URL+leasePath, bytes.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.g.opts.Client.Do(req)
	if err != nil {
		l.g.opts.Log.Debug("no word about a lease", "operation", l.operation, "instance", l.leg.ID, "action", action, "error", err)
		return 0
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody))
	_ = resp.Body.Close()
	return resp.StatusCode
}

// read notes that an answer has begun: from here on nobody needs its hand-off.
func (a *admitted) read(resp *http.Response) {
	a.tries.lease.end(resp.Header.Get(contract.HeaderKV) != contract.KVPulled)
}
