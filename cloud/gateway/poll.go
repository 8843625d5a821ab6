package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirhq/weir/cascade/validate"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/ballot"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// poll asks the draft's own instance whether its answer is right, where the
// cascade's settings want that and the votes can turn the verdict.
func (d *draft) poll(failed bool, said func() validate.Answer) {
	samples, outcome := d.judge.Poll(failed, &d.g.ways, d.now())
	if samples > 0 {
		answer := said()
		switch {
		case answer.Text == "" || len(answer.Text) > ballot.MostAnswer || len(answer.Calls) > 0:
			outcome = ballot.NoText
		case d.ask.opts.CostCapped: // the cap has room for one answer of each pool
			outcome = ballot.Blocked
		case d.tries.judged() >= maxDrafts:
			outcome = ballot.Capped
		default:
			outcome = d.vote(samples, answer.Text)
		}
	}
	if outcome != "" {
		d.g.meter.verified.WithLabelValues(d.ask.req.Model, string(outcome)).Inc()
		d.story.note("verify: " + string(outcome))
	}
}

// vote asks for votes: an attempt of its own, which counts as one of the drafts.
func (d *draft) vote(samples int, text string) ballot.Outcome {
	v := &attempt{admitted: d.admitted, id: contract.NewID(), began: time.Now(), sel: d.sel, pool: d.pool, gaveWay: true, asks: true}
	d.story.Attempts = append(d.story.Attempts, explainedTry{Attempt: v.id, Pool: d.pool, Policy: d.result.Policy, Decode: d.sel.Decode.Opaque})
	if err := v.begin(); err != nil {
		return ballot.Failed
	}
	d.tries.polls++
	d.result.Attempts = d.tries.judged()
	about := ballot.Case{Model: d.sel.Decode.Served, Text: d.ask.kind == kindText, Body: d.ask.body, Request: d.ask.req, Answer: text, Samples: samples}
	heard := d.g.ways.Ask(d.attempt.ctx, d.sel.Decode.Fingerprint, &about, v.sendPoll)
	outcome := tenants.OutcomeUpstreamError
	if heard.Ran {
		outcome = tenants.OutcomeEscalated // it gives way to what it was asked about
		if v.used.take(&heard.Used); heard.Used.PromptTokens == 0 {
			v.used = used{delivered: 1, estimated: true}
		}
	}
	v.settle(outcome, &openai.Error{Code: ballot.Code})
	if heard.Votes == nil {
		return heard.Outcome
	}
	before, turned := d.judge.Votes(heard.Votes, d.now())
	d.story.note(fmt.Sprintf("%d of %d votes, %.3f before", heard.Votes.Yes, heard.Votes.Of, before))
	return turned
}

// sendPoll sends a question about an answer.
func (a *attempt) sendPoll(ctx context.Context, body openai.Body) ([]byte, error) {
	resp, failed := a.call(ctx, route.StageDecode, a.sel.Decode, body.JSON())
	if failed != nil {
		return nil, failed.refusal()
	}
	defer resp.Body.Close()
	data, failed := a.readAll(ctx, route.StageDecode, a.sel.Decode, resp.Body, maxErrorBody)
	if failed != nil {
		return nil, failed.refusal()
	}
	return data, nil
}

// refusal is what the instance said, as an error.
func (f *legError) refusal() error {
	if f.api == nil {
		return errors.New(string(f.ended))
	}
	return f.api
}
