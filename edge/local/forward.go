package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/contract"
)

// Bounds of scores on their way to the cloud. They wait in memory: what a restart
// loses the node's own log still has.
const (
	maxScores    = 1024
	scoreTries   = 8 // that the cloud has answered
	scoreTimeout = 10 * time.Second
	scoreBackoff = time.Second // before the second try, and twice as long before each more
	scoreOffline = 5 * time.Second
)

// What becomes of a score, in the metrics.
const (
	feedbackTaken     = "taken"
	feedbackForwarded = "forwarded" // to the cloud
	feedbackRefused   = "refused"   // by the cloud
	feedbackLost      = "lost"      // on the way there
)

// opinion is a score that waits. A newer one of the same answer takes its place.
type opinion struct {
	id    string
	value float64
	tries int
	due   time.Time
}

// outbox holds the scores that wait, the oldest first.
type outbox struct {
	mu    sync.Mutex
	waits []*opinion
	lost  int // for which there was no room
	came  chan struct{}
}

func newOutbox() outbox { return outbox{came: make(chan struct{}, 1)} }

// put adds a score, in place of an earlier one of the same answer. Where there is no
// room the oldest goes.
func (q *outbox) put(id string, value float64, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waits = slices.DeleteFunc(q.waits, func(s *opinion) bool { return s.id == id })
	if len(q.waits) == maxScores {
		q.waits = q.waits[1:]
		q.lost++
	}
	q.waits = append(q.waits, &opinion{id: id, value: value, due: now})
	select {
	case q.came <- struct{}{}:
	default:
	}
}

// next is the score that is due first, nil for none, and how many were lost.
func (q *outbox) next() (s *opinion, lost int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	lost, q.lost = q.lost, 0
	if len(q.waits) == 0 {
		return nil, lost
	}
	return slices.MinFunc(q.waits, func(a, b *opinion) int { return a.due.Compare(b.due) }), lost
}

// done takes a score out, unless a newer one has its place.
func (q *outbox) done(s *opinion) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waits = slices.DeleteFunc(q.waits, func(other *opinion) bool { return other == s })
}

// Forward sends scores of the cloud's answers there until ctx ends, the next one
// when the one before is through.
func (s *Server) Forward(ctx context.Context) error {
	for {
		next, lost := s.outbox.next()
		s.metrics.feedback.WithLabelValues(feedbackLost).Add(float64(lost))
		wait := time.Hour
		if next != nil {
			wait = next.due.Sub(s.opt.Now())
		}
		if wait <= 0 {
			s.try(ctx, next)
			if ctx.Err() == nil {
				continue
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.outbox.came:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// try makes one try at a score.
func (s *Server) try(ctx context.Context, f *opinion) {
	status, err := s.sendScore(ctx, f)
	now, outcome := s.opt.Now(), ""
	switch {
	case ctx.Err() != nil:
		return
	case contract.CheckScored(f.id, now) != nil:
		outcome = feedbackLost
	case errors.Is(err, uplink.ErrDown):
		f.due = now.Add(scoreOffline)
		return
	case status == http.StatusOK:
		outcome = feedbackForwarded
	case err != nil || status == http.StatusNotFound || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError:
		// Another gateway may have given the answer, and have noted it a second later.
		if f.tries++; f.tries < scoreTries {
			f.due = now.Add(scoreBackoff << (f.tries - 1))
			return
		}
		outcome = feedbackLost
	default:
		outcome = feedbackRefused
	}
	s.outbox.done(f)
	s.metrics.feedback.WithLabelValues(outcome).Inc()
	if outcome != feedbackForwarded {
		s.opt.Log.Warn("score did not reach the cloud", "operation", f.id, "status", status, "tries", f.tries, "err", err)
	}
}

// sendScore puts a score to the cloud as this device's.
func (s *Server) sendScore(ctx context.Context, f *opinion) (status int, err error) {
	body, err := json.Marshal(contract.Feedback{Score: f.value})
	if err != nil {
		return 0, fmt.Errorf("send score: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, scoreTimeout)
	defer cancel()
	resp, err := s.opt.Cloud.Do(ctx, uplink.Request{Method: http.MethodPut, Path: "/v1/weir/requests/" + f.id + "/feedback",
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body})
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
