package local

import (
	"net/http"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// Scores go through a node at a pace, for the sake of its log.
const (
	scoresPerSecond = 20
	mostScores      = 200
)

// serveFeedback takes what somebody thinks of an answer that this node has given.
// It is a label in the node's log; the cloud hears of it only where the answer was
// the cloud's.
func (s *Server) serveFeedback(w http.ResponseWriter, r *http.Request) {
	f, err := s.feedback(r)
	if err != nil {
		s.refuse(w, r, openai.AsError(err))
		return
	}
	s.serveJSON(w, f)
}

func (s *Server) feedback(r *http.Request) (f contract.Feedback, err error) {
	who, err := s.authenticate(r)
	if err != nil {
		return f, err
	}
	if f, err = contract.ReadFeedback(r); err != nil {
		return f, err
	}
	if !s.pace.Spend(s.opt.Now()) {
		return f, &openai.Error{Status: http.StatusTooManyRequests, Type: openai.TypeRateLimit, Code: "rate_limited", RetryAfter: time.Second,
			Message: "scores come faster than 20 a second: try again shortly"}
	}
	now, id := s.opt.Now(), r.PathValue("id")
	if err := contract.CheckScored(id, now); err != nil {
		return f, err
	}
	e, err := s.find(who, id)
	if err != nil {
		return f, err
	}
	if !e.whole() {
		return f, &openai.Error{Status: http.StatusConflict, Type: openai.TypeInvalidRequest, Code: "no_answer", Param: "id", NoRetry: true,
			Message: "the request got no whole answer that could be scored"}
	}
	l := journal.Record{UnixNS: now.UnixNano(), Kind: journal.KindLabel, Request: id, Cell: cell(e.Class), Key: e.key,
		Private: e.Privacy.Local(), Tier: string(e.Weir.Tier), LabelKind: journal.LabelFeedback}
	if e.Weir.Tier == cascade.TierEdge {
		l.Edge = &f.Score
	} else {
		l.Cloud = &f.Score
	}
	if s.opt.Decisions != nil && !s.opt.Decisions.Log(l) {
		s.metrics.dropped.Inc()
	}
	s.metrics.feedback.WithLabelValues(feedbackTaken).Inc()
	if e.Weir.Tier == cascade.TierCloud && !l.Private {
		s.outbox.put(id, f.Score, now)
	}
	return f, nil
}

// whole reports whether a tier has answered to the end: the cloud counts scores of
// such answers only. The log of an older release does not say how requests ended.
func (e *explained) whole() bool {
	return e.Weir.Tier != "" && (e.Outcome == string(tenants.OutcomeOK) || e.Outcome == "")
}
