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
	Outcome string          `json:"outcome,omitempty"`
	Votes   *verifier.Votes `json:"votes,omitempty"`
	Before  *float64        `json:"before,omitempty"` // confidence without them
	Grade   learn.Grade     `json:"grade,omitempty"`  // of the votes

	asked bool
	used  openai.Usage
}

// Outcomes of a verification that asked, and of one that did not.
const (
	voteSame    = "same"
	voteToCloud = "to_cloud" // votes turned a kept answer into an escalation
	voteToEdge  = "to_edge"  // and the other way round
	voteTimeout = "timeout"
	voteError   = "error"
	voteUnread  = "unread"  // neither yes nor no
	voteLearned = "learned" // for a label alone, off the request's path

	unaskedNotViable   = "not_viable" // the table of votes is not usable
	unaskedCertain     = "certain"    // no votes could turn the verdict
	unaskedFailed      = "validator_failed"
	unaskedUnknown     = "signal_unusable"
	unaskedShown       = "shown"
	unaskedHedged      = "hedged"
	unaskedForm        = "no_text" // a tool call, no text or too much of it
	unaskedBlocked     = "blocked" // the cloud may not be asked
	unaskedDeadline    = "deadline"
	unaskedCap         = "cap"
	unaskedBusy        = "busy"
	unaskedUnsupported = "unsupported" // the model server can tell no votes
)

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
	f.s.metrics.verified.WithLabelValues(c.vote.Outcome).Inc()
	return v
}

// unasked is why nobody is asked, "" where somebody is.
func (f *flight) unasked(v *cascade.Verdict, view *learn.View) string {
	c, s := f.c, f.s
	_, blocked := cascade.Blocks(c.ask, c.node)
	switch {
	case v.Reason == cascade.ReasonValidatorFailed:
		return unaskedFailed
	case !v.Known:
		return unaskedUnknown
	case f.early || f.decided:
		return unaskedShown
	case f.asked != nil || !c.hedged.IsZero():
		return unaskedHedged
	case !c.votable():
		return unaskedForm
	case blocked != "":
		return unaskedBlocked
	case view.VerifierGrade != learn.GradeUsable || view.Verifier.Samples() != c.settings().Verify.Samples:
		return unaskedNotViable
	case !cascade.VotesMatter(v.Confidence, &c.policy, view.CloudQuality, view.Verifier):
		return unaskedCertain
	case c.ask.Remaining != 0 && s.voting.p90()+c.node.RTT+c.node.CloudP90 >= c.ask.Remaining:
		return unaskedDeadline
	case c.edgeRuns+c.cloudSends+2 > maxAttempts: // the votes, and an escalation
		return unaskedCap
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
	p := s.newPoll(c)
	votes, outcome := p.ask(f.ctx)
	if c.vote.asked, c.vote.used = p.sent, p.used; p.sent {
		c.edgeRuns++
	}
	node := c.refresh(s)
	pe, pol := v.Confidence, c.policy
	if outcome == "" {
		c.vote.Votes, c.vote.Before = votes, &v.Confidence
		pe, pol = cascade.Voted(pe, pol, view.CloudQuality, view.Verifier, votes.Yes)
	}
	after := cascade.Judge(&c.ask, pe, true, false, &pol, &node)
	switch {
	case outcome != "":
	case after.Wanted == v.Wanted:
		outcome = voteSame
	case after.Wanted:
		outcome = voteToCloud
	default:
		outcome = voteToEdge
	}
	c.vote.Outcome = outcome
	return after
}

// edgeTokens are those that the local model has made for the request.
func (c *call) edgeTokens() int { return c.draft.Usage.CompletionTokens + c.vote.used.CompletionTokens }
