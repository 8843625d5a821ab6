package local

import (
	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/internal/ballot"
	"github.com/weirhq/weir/internal/openai"
)

// maxAttempts bounds what one request makes of runs and calls: the local answer,
// the votes on it, requests to the cloud.
const maxAttempts = 3

// verified is what became of asking the local model about its own answer.
type verified struct {
	Outcome ballot.Outcome  `json:"outcome,omitempty"`
	Votes   *verifier.Votes `json:"votes,omitempty"`
	Before  *float64        `json:"before,omitempty"` // confidence without them
	Grade   learn.Grade     `json:"grade,omitempty"`  // of the votes

	asked bool
	used  openai.Usage
}

// verify asks the local model whether its answer is right, where the settings want
// that and its votes can turn the verdict v on the whole answer.
func (f *flight) verify(v cascade.Verdict) cascade.Verdict {
	c := f.c
	if c.settings().Verify == nil || !c.plan.Judge {
		return v
	}
	view := f.s.opt.Learner.View(cell(c.class))
	c.vote.Grade = view.VerifierGrade
	if c.vote.Outcome = f.unasked(&v, view); c.vote.Outcome == "" {
		v = f.poll(v, view)
	}
	f.s.metrics.verified.WithLabelValues(string(c.vote.Outcome)).Inc()
	return v
}

// unverified tells why nobody is asked about an answer that the cloud's cut short.
func (f *flight) unverified() {
	c := f.c
	if c.settings().Verify == nil || !c.plan.Judge {
		return
	}
	if c.vote.Outcome = ballot.Hedged; f.decided {
		c.vote.Outcome = ballot.Decided
	}
	f.s.metrics.verified.WithLabelValues(string(c.vote.Outcome)).Inc()
}

// unasked is why nobody is asked, "" where somebody is.
func (f *flight) unasked(v *cascade.Verdict, view *learn.View) ballot.Outcome {
	c, s := f.c, f.s
	health, _ := s.opt.Worker.Health()
	model := health.Fingerprint.Weights
	deaf := s.ways.Unasked(model)
	_, blocked := cascade.Blocks(c.ask, c.node)
	switch {
	case v.Reason == cascade.ReasonValidatorFailed:
		return ballot.Broken
	case !v.Known:
		return ballot.NoSignal
	case f.early:
		return ballot.Shown
	case f.decided:
		return ballot.Decided
	case f.asked != nil || !c.hedged.IsZero():
		return ballot.Hedged
	case !c.votable():
		return ballot.NoText
	case blocked != "":
		return ballot.Blocked
	case view.VerifierGrade != learn.GradeUsable:
		return ballot.NotViable
	case deaf != "":
		return deaf
	case !s.ways.Reads(view.Verifier, model, c.settings().Verify.Samples):
		return ballot.NotViable
	case !cascade.VotesMatter(v.Confidence, &c.policy, view.CloudQuality, view.Verifier):
		return ballot.Certain
	case c.ask.Remaining != 0 && s.voting.p90()+c.node.RTT+c.node.CloudP90 >= c.ask.Remaining:
		return ballot.Late
	case c.edgeRuns+c.cloudSends+2 > maxAttempts: // the votes, and an escalation
		return ballot.Capped
	}
	return ""
}

// votable reports whether the local answer is one that can be asked about.
func (c *call) votable() bool {
	return len(c.draft.Calls) == 0 && c.draft.Text != "" && len(c.draft.Text) <= ballot.MostAnswer
}

// poll asks, and judges the answer anew by what was said and by the time that is
// left.
func (f *flight) poll(v cascade.Verdict, view *learn.View) cascade.Verdict {
	c, s := f.c, f.s
	heard := s.newPoll(c).ask(f.ctx)
	if c.vote.asked, c.vote.used = heard.Sent, heard.Used; heard.Sent {
		c.edgeRuns++
	}
	node := c.refresh(s)
	pe, pol := v.Confidence, c.policy
	told := heard.Votes != nil && view.Verifier.Reads(*heard.Votes)
	if heard.Votes != nil && !told { // of another kind than the table's since just now
		heard.Outcome = ballot.NotViable
	}
	if told {
		c.vote.Votes, c.vote.Before = heard.Votes, &v.Confidence
		pe, pol = cascade.Voted(pe, pol, view.CloudQuality, view.Verifier, heard.Votes.Yes)
	}
	after := cascade.Judge(&c.ask, pe, true, false, &pol, &node)
	switch c.vote.Outcome = heard.Outcome; {
	case !told:
	case after.Wanted == v.Wanted:
		c.vote.Outcome = ballot.Same
	case after.Wanted:
		c.vote.Outcome = ballot.Escalates
	default:
		c.vote.Outcome = ballot.Keeps
	}
	return after
}

// edgeTokens are those that the local model has made for the request.
func (c *call) edgeTokens() int { return c.draft.Usage.CompletionTokens + c.vote.used.CompletionTokens }
