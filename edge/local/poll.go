package local

import (
	"context"
	"net/http"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/edge/learning"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/ballot"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// poll is one request for votes. It keeps nothing of the call but what it asks.
type poll struct {
	s     *Server
	about ballot.Case
	kind  upstream.Kind
	print string // fingerprint of the model
	row   tenants.UsageRecord
}

// newPoll prepares to ask about the call's local answer.
func (s *Server) newPoll(c *call) *poll {
	health, _ := s.opt.Worker.Health()
	model := health.Model
	if model == "" {
		model = s.opt.Model
	}
	return &poll{s: s, kind: c.kind, print: health.Fingerprint.Weights,
		about: ballot.Case{Model: model, Text: c.kind == upstream.Text, Body: openai.Body{"messages": c.body["messages"]},
			Request: c.req, Answer: cascade.AnswerText(c.draft.Text), Samples: c.settings().Verify.Samples},
		row: s.usage(c)}
}

// A label's votes wait for the local model to be free, and for no longer than this:
// then the label has none.
const (
	labelPatience = 30 * time.Second
	labelTick     = 50 * time.Millisecond
)

// awaitFree waits until the local model answers nobody. It reports false where that
// takes too long.
func (s *Server) awaitFree(ctx context.Context) bool {
	ctx, stop := context.WithTimeout(ctx, labelPatience)
	defer stop()
	tick := time.NewTicker(labelTick)
	defer tick.Stop()
	for len(s.local) > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// pollFor asks for votes for a label of the call's answer, off its path; nil where
// the settings want none or the request has been asked enough.
func (s *Server) pollFor(c *call) learning.Poll {
	if c.settings().Verify == nil || c.vote.Votes != nil || !c.votable() || c.bodySize() > maxShadow ||
		max(1, c.cloudSends)+c.edgeRuns+1 > maxAttempts {
		return nil
	}
	p := s.newPoll(c)
	return func(ctx context.Context) *verifier.Votes {
		heard := ballot.Heard{Outcome: ballot.Busy}
		if s.awaitFree(ctx) {
			heard = p.ask(ctx)
		}
		if heard.Votes != nil {
			heard.Outcome = ballot.Learned
		}
		s.metrics.verified.WithLabelValues(string(heard.Outcome)).Inc()
		return heard.Votes
	}
}

// ask asks the local model once.
func (p *poll) ask(ctx context.Context) ballot.Heard {
	s := p.s
	if len(s.local) >= s.opt.MaxLocal {
		return ballot.Heard{Outcome: ballot.Busy}
	}
	select {
	case s.local <- struct{}{}:
		defer func() { <-s.local }()
	default:
		return ballot.Heard{Outcome: ballot.Busy}
	}
	began := s.opt.Now()
	header := http.Header{contract.HeaderOperation: {p.row.OperationID}}
	heard := s.ways.Ask(ctx, p.print, &p.about, func(ctx context.Context, body openai.Body) ([]byte, error) {
		return s.opt.Generator.Whole(ctx, upstream.Ask{Kind: p.kind, Body: body, Header: header})
	})
	if heard.Sent {
		p.record(began, &heard)
	}
	if heard.Votes != nil || heard.Outcome == ballot.Timeout {
		s.voting.add(s.opt.Now().Sub(began))
	}
	return heard
}

// record writes the row of the attempt. It is no answer to count, hence the outcome;
// the code tells what it was for.
func (p *poll) record(began time.Time, heard *ballot.Heard) {
	r, used := &p.row, &heard.Used
	r.AttemptID, r.StartedAt, r.UsageSource = contract.NewID(), began.UTC(), tenants.UsageUpstream
	r.TotalMicros = p.s.opt.Now().Sub(began).Microseconds()
	r.Outcome, r.ErrorCode = tenants.OutcomeEscalated, ballot.Code
	r.InputTokens, r.CachedTokens, r.OutputTokens = int64(used.PromptTokens), int64(cached(*used)), int64(used.CompletionTokens)
	p.s.opt.Recorder.Record(*r)
}
