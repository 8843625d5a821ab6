package local

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/quota"
)

// errOvertaken ends the local generation when the cloud's answer has begun.
var errOvertaken = errors.New("the cloud's answer has begun")

// flight is a local answer on its way to the client. stream.Machine decides;
// here is the acting. One goroutine owns it: of the request to the cloud, which
// another makes, it sees what asking shows.
type flight struct {
	s      *Server
	c      *call
	out    *output
	ctx    context.Context
	m      *stream.Machine
	window *stream.Window
	frames frames
	why    cascade.Reason          // where nothing is judged
	keep   bool                    // shown is kept: the cloud may go on after it
	stop   context.CancelCauseFunc // ends the local generation

	began time.Time        // of the answer's first token
	held  []upstream.Piece // copies that lie in arena
	arena []byte
	shown []byte

	sealed  bool // the result is as complete as it was before the first piece
	early   bool // text was shown before the end, by a verdict that has not been revised
	decided bool // the verdict that counts has been adopted
	lost    bool // the local generation failed
	broken  bool // the whole answer breaks the form that the client asked for
	asked   *asking
	claimed atomic.Bool    // the answer is the cloud's that has begun, or the edge's that was kept before
	cloud   error          // why the cloud did not answer
	cause   cascade.Reason // why the edge alone would not do
	slot    quota.Reservation
	end     *stream.End
}

// newFlight prepares a local answer. why is its reason where it is not judged.
func (s *Server) newFlight(ctx context.Context, c *call, out *output, why cascade.Reason) *flight {
	handoff, can := c.settings().Handoff, s.cloudContinues(c)
	f := &flight{s: s, c: c, out: out, ctx: ctx, why: why, cause: cascade.ReasonLowConfidence, keep: handoff == stream.HandoffContinue && can, frames: frames{c: c, out: out}}
	f.m = stream.NewMachine(stream.Options{
		Judge: c.plan.Judge, Whole: !out.stream, Reason: why, Cloud: c.plan.Second() == cascade.TierCloud, Handoff: handoff, CanContinue: can,
	})
	f.frames.speaks(s.opt.Model)
	o := s.windowOf(c)
	if f.window = stream.NewWindow(o); o.Off() {
		f.early = true
		f.m.Window(cascade.Verdict{Reason: cascade.ReasonConfident})
	}
	return f
}

// run generates the answer and sends it, or lets the request over.
func (f *flight) run() error {
	if err := f.admit(); err != nil {
		return err
	}
	defer f.free()
	ctx, stop := context.WithCancelCause(f.ctx)
	f.stop = stop
	defer stop(nil)
	defer f.dropCloud()
	if f.c.foreseen.hedge && f.c.plan.Judge {
		f.c.hedged = f.s.opt.Now()
		if err := f.act(f.m.Hedge()); err != nil {
			return err
		}
	}
	err := f.s.generate(ctx, f.c, f.watch)
	f.free()
	if err := f.land(err); err != nil {
		return err
	}
	for f.end == nil {
		reply, err := f.asked.wait(f.c)
		if err == nil {
			return f.handOver(reply)
		}
		if gone := f.s.gone(f.ctx); gone != nil {
			f.record(tenants.OutcomeClientCancelled, "")
			return gone
		}
		if err := f.loseCloud(err); err != nil {
			return err
		}
	}
	return f.finish()
}

// watch acts on a piece of the answer as it comes.
func (f *flight) watch(p *upstream.Progress) error {
	if p.Calls != nil {
		f.m.Tool(true)
	}
	alarm := f.feed(p)
	if err := f.pass(&p.Piece); err != nil {
		return err
	}
	switch {
	case f.m.Undecided() && !p.Think:
		return f.weigh(p, alarm)
	case alarm && f.m.Watched():
		if v := f.c.judgeBeginning(f.s, p); v.Escalate {
			return f.decide(p, v, f.m.Doubt)
		}
	case f.asked != nil:
		return f.look()
	}
	return nil
}

// feed tells the window of a piece and reports its alarm. Reasoning is not the
// answer: it takes up none of the window.
func (f *flight) feed(p *upstream.Progress) (alarm bool) {
	if p.Think {
		return false
	}
	if f.began.IsZero() {
		f.began = f.s.opt.Now()
	}
	for _, lp := range p.LogProbs {
		alarm = f.window.Token(lp) || alarm
	}
	if len(p.LogProbs) == 0 {
		f.window.Token(math.NaN())
	}
	return alarm
}

// weigh judges the text held back when the window is over. An alarm before
// that counts only where the answer is lost already.
func (f *flight) weigh(p *upstream.Progress, alarm bool) error {
	switch {
	case f.window.Over(f.s.opt.Now().Sub(f.began)):
		return f.decide(p, f.c.judgeBeginning(f.s, p), f.m.Window)
	case alarm:
		if v := f.c.judgeAtBest(f.s, p); v.Escalate {
			return f.decide(p, v, f.m.Window)
		}
	}
	return nil
}

func (f *flight) decide(p *upstream.Progress, v cascade.Verdict, step func(cascade.Verdict) stream.Output) error {
	if f.asked != nil && !v.Escalate && !f.claimed.CompareAndSwap(false, true) {
		return errOvertaken // the cloud was first: its begun answer must not be dropped
	}
	f.c.draft, f.decided, f.early = p.Snapshot(), true, !v.Escalate
	f.c.adopt(v)
	return f.act(step(v))
}

// land takes the end of the generation.
func (f *flight) land(err error) error {
	c := f.c
	switch {
	case err == nil:
		out := f.judged()
		if gone := f.s.gone(f.ctx); gone != nil && c.vote.asked { // while votes were waited for
			f.record(tenants.OutcomeClientCancelled, "")
			return gone
		}
		return f.act(out)
	case errors.Is(err, errOvertaken):
		f.unverified()
		return nil
	}
	why, ok := f.s.mayMove(c, err)
	if !ok {
		return err
	}
	f.lost, f.cause = true, why
	if f.decided || f.sealed {
		c.draft = c.partial
	}
	if failed := f.act(f.m.EdgeFail(why)); failed != nil {
		return failed
	}
	if f.end != nil && f.cloud == nil {
		return err
	}
	return nil
}

// judged judges the whole answer. Where an earlier verdict has let text be shown,
// or has asked the cloud, that is the one that counts.
func (f *flight) judged() stream.Output {
	c := f.c
	v := f.verify(c.judgeWhole(f.s))
	f.broken = c.check.form && v.Reason == cascade.ReasonValidatorFailed
	out := f.m.EdgeEnd(v)
	if f.broken {
		out.End.Reason = v.Reason
	}
	switch {
	case out.Ask != stream.AskNone, !f.early && !f.decided:
		c.adopt(v)
	case f.early:
		v.Escalate, v.Wanted, v.Reason = false, false, out.End.Reason
		c.adopt(v)
	}
	return out
}

// act does what the machine says.
func (f *flight) act(out stream.Output) error {
	if out.StopCloud {
		f.dropCloud()
	}
	if out.StopEdge {
		f.stop(errOvertaken)
	}
	if out.Done {
		if f.formRefused() {
			out.Flush, out.End.Failed = false, true
		}
		f.conclude(out.End)
	}
	if err := f.flush(out); err != nil {
		return err
	}
	if out.Ask == stream.AskNone {
		return nil
	}
	if out.Reason != cascade.ReasonHedgeWon {
		f.cause = out.Reason
	}
	asked, err := f.s.startAsking(f.ctx, f.c, out.Ask, out.Reason, f.shown, f.overtake)
	if err != nil {
		return f.loseCloud(err)
	}
	f.asked = asked
	return nil
}

// conclude notes how the machine ended the answer.
func (f *flight) conclude(end stream.End) {
	f.end = &end
	if end.Failed {
		return
	}
	c := f.c
	f.record(tenants.OutcomeOK, end.Reason)
	c.usage = c.draft.Usage
	c.result.Tier, c.result.Model, c.result.Reason = cascade.TierEdge, f.s.opt.Model, end.Reason
	c.result.CostUSD, c.result.Attempts = f.s.edgeCost(c), c.edgeRuns+c.cloudSends
}

// record writes the row of the local attempt. One that failed has its row, and one
// that never began has none.
func (f *flight) record(o tenants.Outcome, why cascade.Reason) {
	if !f.lost && f.c.edgeRuns > 0 {
		f.s.record(f.c, o, why)
	}
}

// finish sends the end of the edge's answer.
func (f *flight) finish() error {
	c := f.c
	if f.end.Failed {
		return f.s.cloudFailure(f.ctx, c, f.out, f.cause, f.cloud)
	}
	f.seal()
	c.result.EdgeTokens = c.edgeTokens()
	if f.out.stream {
		return f.frames.end(c.draft.Finish, &c.draft.Usage, f.s.final(c))
	}
	var probs []byte
	if c.req.Logprobs {
		probs = upstream.JoinLogprobs(c.kind, f.held)
	}
	f.s.final(c)
	return f.out.json(c.whole(f.s.opt.Model, probs))
}
