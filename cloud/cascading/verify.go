package cascading

import (
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/internal/ballot"
)

// gradeVotes finds the pools whose votes on their own answers may change a verdict.
func (e *Entry) gradeVotes() {
	e.votes = make([]bool, e.drafts)
	set := e.o.Policy.Verify
	for i := range e.votes {
		if t := e.o.Tiers[i].Calibration.Verifier; set != nil && t != nil && t.Samples() == set.Samples {
			_, lower := t.Benefit()
			e.votes[i] = learn.GradeOf(lower) == learn.GradeUsable
		}
	}
}

// lacksVotes reports whether no small pool has a table for the samples that the
// settings ask for.
func (o *Options) lacksVotes() bool {
	if o.Policy.Verify == nil {
		return false
	}
	for _, t := range o.Tiers[:len(o.Tiers)-o.Equals] {
		if v := t.Calibration.Verifier; v != nil && v.Samples() == o.Policy.Verify.Samples {
			return false
		}
	}
	return true
}

// Poll says of how many samples the tier's model is to be asked whether its whole
// answer is right: 0 where its votes could not turn the verdict, and why, or ""
// where the settings want none. failed says that the answer broke its form or says
// nothing. Votes come before End.
func (d *Draft) Poll(failed bool, ways *ballot.Ways, a Ask) (samples int, why ballot.Outcome) {
	set := d.c.e.o.Policy.Verify
	if set == nil {
		return 0, ""
	}
	pe, known := d.whole(&a)
	switch {
	case failed:
		return 0, ballot.Broken
	case !known:
		return 0, ballot.NoSignal
	case d.early:
		return 0, ballot.Shown
	case d.decided:
		return 0, ballot.Decided
	case !d.c.e.votes[d.tier]:
		return 0, ballot.NotViable
	case ways.Unasked(a.Fingerprint) != "":
		return 0, ways.Unasked(a.Fingerprint)
	case !ways.Reads(d.c.e.o.Tiers[d.tier].Calibration.Verifier, a.Fingerprint, set.Samples):
		return 0, ballot.NotViable
	}
	turns, rest := d.turns(pe, set.Samples, &a)
	switch {
	case !turns:
		return 0, ballot.Certain
	case a.Remaining != 0 && a.Remaining <= ways.Waits()+rest:
		return 0, ballot.Late
	}
	return set.Samples, ""
}

// turns reports whether any number of votes turns the verdict on an answer that is
// right with probability pe, and how long the pool that may be asked after them
// takes for an answer.
func (d *Draft) turns(pe float64, samples int, a *Ask) (turns bool, rest time.Duration) {
	plain := d.judge(pe, true, false, a)
	next := d.c.next
	if plain.Escalate {
		rest = d.c.e.takes(next)
	}
	for yes := range samples + 1 {
		d.votes = &verifier.Votes{Yes: yes, Of: samples}
		v := d.judge(pe, true, false, a)
		if v.Escalate {
			rest = max(rest, d.c.e.takes(d.c.next))
		}
		turns = turns || v.Escalate != plain.Escalate || v.Escalate && d.c.next != next
	}
	d.votes = nil
	return turns, rest
}

// takes is how long a whole answer of a tier takes, 0 before one has been seen.
func (e *Entry) takes(tier int) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.duration(tier)
}

// Votes takes what the tier's model has said of its answer. It says what that does
// to the verdict: nothing where its table is for votes of another kind.
func (d *Draft) Votes(v *verifier.Votes, a Ask) (before float64, outcome ballot.Outcome) {
	pe, _ := d.whole(&a)
	if !d.c.e.o.Tiers[d.tier].Calibration.Verifier.Reads(*v) {
		return pe, ballot.NotViable
	}
	plain := d.judge(pe, true, false, &a)
	d.votes = v
	switch after := d.judge(pe, true, false, &a); {
	case after.Escalate == plain.Escalate:
		return pe, ballot.Same
	case after.Escalate:
		return pe, ballot.Escalates
	}
	return pe, ballot.Keeps
}

// whole is the probability that the whole answer is right, by its signals alone.
func (d *Draft) whole(a *Ask) (pe float64, known bool) {
	s := d.acc.Signals()
	return d.c.calibration(d.tier, a).Probability(&s)
}

// voted is what votes make of the probability that a tier's answer is right, and
// of the next one's. The entry is locked.
func (c *Case) voted(tier int, pe float64, votes *verifier.Votes, ask *Ask) (edge, next float64) {
	cal := &c.e.o.Tiers[tier].Calibration
	p := c.e.ctl.Policy(policy.Costs{CloudNano: c.e.cost(c.last, ask.Nano[c.last])})
	if p.Rule != cascade.RuleGain {
		if p.CloudQuality = cal.CloudAccuracy; p.CloudQuality == 0 {
			p.CloudQuality = 1 // labels were agreement with it
		}
	}
	return cal.Verifier.Judge(pe, p.CloudQuality, votes.Yes)
}

// Polls reports whether a small pool may be asked about its own answers.
func (e *Entry) Polls() bool { return e.o.Policy.Verify != nil }
