package learning

import (
	"strings"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/cascade/learn"
)

// Escalated learns from an answer that the cloud gave instead of the edge, for at
// most bound: its label was certain to be seen. While kept answers have no chance
// of a label, because the limits are used up, it learns nothing: the doubtful ones
// alone would mislead. Where there is no limit to wait for, they are all there is.
func (l *Learner) Escalated(p Pair, cloud Answer, bound int64) {
	if l.View(p.Cell).Calibrated && l.opt.Shadow.PerHour > 0 && !l.open(bound) {
		l.counts.skipped.Add(1)
		return
	}
	p.Propensity = learn.Propensity(true, 0)
	if p.Poll == nil || !l.polls.take(escalated{p, cloud}) {
		l.label(p, cloud, false)
	}
}

// label compares both answers and logs what comes of it; the log's goroutine
// gives it back to Apply. Where the cloud said nothing there is no label.
func (l *Learner) label(p Pair, cloud Answer, shadow bool) {
	r := journal.Record{
		UnixNS: l.opt.Now().UnixNano(), Kind: journal.KindLabel, Request: p.Operation, Cell: p.Cell, Key: p.Key, Model: p.Model,
		Features: p.Features, Scored: cascade.ScoredAnswer, Votes: p.Votes, Propensity: p.Propensity, Shadow: shadow, CloudMS: float64(cloud.Took.Microseconds()) / 1e3,
	}
	if shadow {
		r.CostNano = cloud.CostNano // an escalation's is in its decision
	}
	if strings.TrimSpace(cloud.Text) != "" {
		edge, right := learn.Agree(p.Answer, cloud.Text), 1.0
		r.Edge, r.Cloud, r.LabelKind = &edge, &right, journal.LabelAgreement
	}
	if !l.log.Log(r) {
		l.counts.lost.Add(1)
	}
}
