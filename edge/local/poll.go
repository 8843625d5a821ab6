package local

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/edge/learning"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/ballot"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// pollTime bounds how long votes are waited for.
const pollTime = 2 * time.Second

// poll is one request for votes. It keeps nothing of the call but what it asks.
type poll struct {
	s     *Server
	about ballot.Case
	kind  upstream.Kind
	print string // fingerprint of the model
	row   tenants.UsageRecord

	sent bool
	used openai.Usage
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
			Request: c.req, Answer: c.draft.Text, Samples: c.settings().Verify.Samples},
		row: s.usage(c)}
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
		votes, outcome := p.ask(ctx)
		if outcome == "" {
			outcome = voteLearned
		}
		s.metrics.verified.WithLabelValues(outcome).Inc()
		return votes
	}
}

// ask asks the local model once. Without votes the outcome tells why.
func (p *poll) ask(ctx context.Context) (votes *verifier.Votes, outcome string) {
	s, way := p.s, p.s.ways.Of(p.print)
	switch {
	case way == ballot.Nowise:
		return nil, unaskedUnsupported
	case len(s.local) >= s.opt.MaxLocal:
		return nil, unaskedBusy
	}
	select {
	case s.local <- struct{}{}:
		defer func() { <-s.local }()
	default:
		return nil, unaskedBusy
	}
	began := s.opt.Now()
	short, stop := context.WithTimeout(ctx, pollTime)
	defer stop()
	data, err := s.opt.Generator.Whole(short, upstream.Ask{Kind: p.kind, Body: p.about.Ask(way), Header: http.Header{contract.HeaderOperation: {p.row.OperationID}}})
	ran, v := err == nil, verifier.Votes{}
	if ran {
		v, p.used, err = p.about.Count(way, data)
	}
	p.sent = true
	s.ways.Tell(p.print, way, err)
	p.record(began, ran)
	switch {
	case err == nil:
		s.voting.add(s.opt.Now().Sub(began))
		return &v, ""
	case errors.Is(err, ballot.ErrUnread):
		return nil, voteUnread
	case short.Err() != nil && ctx.Err() == nil:
		return nil, voteTimeout
	case s.ways.Of(p.print) != way:
		return nil, unaskedUnsupported
	}
	return nil, voteError
}

// record writes the row of the attempt. Its answer was nobody's, hence the outcome;
// the code tells what it was for.
func (p *poll) record(began time.Time, ran bool) {
	r := &p.row
	r.AttemptID, r.StartedAt, r.UsageSource = contract.NewID(), began.UTC(), tenants.UsageUpstream
	r.TotalMicros = p.s.opt.Now().Sub(began).Microseconds()
	r.Outcome, r.ErrorCode = tenants.OutcomeSuperseded, codeVerify
	if !ran {
		r.Outcome = tenants.OutcomeUpstreamError
	}
	r.InputTokens, r.CachedTokens, r.OutputTokens = int64(p.used.PromptTokens), int64(cached(p.used)), int64(p.used.CompletionTokens)
	p.s.opt.Recorder.Record(*r)
}

// codeVerify tells a verifier's rows from others.
const codeVerify = "verify"
