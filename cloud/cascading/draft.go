package cascading

import (
	"math"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cascade/validate"
	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/cloud/gateway/chunk"
	"github.com/weirhq/weir/internal/form"
	"github.com/weirhq/weir/internal/logprobs"
)

// Draft is an answer of a tier while it is made: stream.Machine decides
// what the client sees of it. What a method returns the caller carries out.
type Draft struct {
	c      *Case
	tier   int
	m      *stream.Machine
	window *stream.Window
	acc    logprobs.Scorer
	began  time.Time // of the first token

	early   bool            // text was shown before the end, by a verdict that has not been revised
	decided bool            // the verdict that counts has been adopted
	votes   *verifier.Votes // of the tier's model on its whole answer
	failed  bool            // the answer is none, or breaks its form
	verdict cascade.Verdict // the one that counts so far
}

// Form is what the client wants of an answer.
type Form struct {
	Stream    bool
	MaxTokens int // 0 is unknown
	// Form is what the answer is checked for. One that may break it is held back
	// until it is whole.
	form.Form
}

// Checked reports whether answers are checked for their form.
func (f *Form) Checked() bool { return f.Asked && !f.Beyond }

// Broken reports whether an answer of so many tokens breaks the form.
func (f *Form) Broken(a validate.Answer, tokens int) bool {
	return f.Checked() && form.Broken(&f.Rules, a, tokens, f.MaxTokens)
}

// Draft begins an answer of a tier. Without a calibration for beginnings it is held back
// until it is whole.
func (c *Case) Draft(tier int, f Form) *Draft {
	set, cal := &c.e.o.Policy, &c.e.o.Tiers[tier].Calibration
	o := stream.WindowOptions{Whole: true}
	if p := cal.Prefix; p != nil {
		o = stream.WindowOptions{Tokens: p.Tokens, Wait: p.Wait(), Mean: p.PhiMean, SD: p.PhiSD}
		if w := set.Window; w != nil {
			o.Tokens, o.Wait = w.Tokens, w.Wait()
		}
		o.Whole = f.Checked()
		o = o.ForRequest(f.Stream, f.MaxTokens)
	}
	d := &Draft{c: c, tier: tier, window: stream.NewWindow(o),
		m: stream.NewMachine(stream.Options{Judge: true, Whole: !f.Stream, Cloud: true, Handoff: set.Handoff, CanContinue: c.e.o.Continues})}
	if f.Rules.Schema != nil {
		d.acc.ExpectJSON()
	}
	if o.Off() {
		d.early = true
		d.adopt(cascade.Verdict{Reason: cascade.ReasonConfident})
		d.m.Window(d.verdict)
	}
	return d
}

// Verdict is the one on the draft that counts so far.
func (d *Draft) Verdict() cascade.Verdict { return d.verdict }

// adopt makes a verdict the one that counts, of the draft and of the request.
func (d *Draft) adopt(v cascade.Verdict) { d.verdict, d.c.verdict = v, v }

// Shows reports whether text that comes now is shown at once.
func (d *Draft) Shows() bool { return d.m.Text() }

// Event tells of an event of the answer. ask is called for a judgement only.
func (d *Draft) Event(e *chunk.Event, ask func() Ask, now time.Time) stream.Output {
	if e.Calls {
		d.m.Tool(true)
	}
	alarm, thinks := d.feed(e, now)
	switch {
	case thinks: // not the answer
	case d.m.Undecided():
		return d.weigh(alarm, ask, now)
	case alarm && d.m.Watched():
		a := ask()
		if v := d.beginning(&a); v.Escalate {
			return d.decide(v, &a, d.m.Doubt)
		}
	}
	return stream.Output{}
}

// feed scores an event's tokens and reports the window's alarm, and whether all
// of them are reasoning, which takes up none of the window.
func (d *Draft) feed(e *chunk.Event, now time.Time) (alarm, thinks bool) {
	part, n, answers := logprobs.Text, 0, 0
	switch {
	case e.Think:
		part = logprobs.Think
	case e.Calls:
		part = logprobs.Calls
	}
	span := cascade.SpanAnswer
	for l := logprobs.Of(e.Probs); l.Next(); n++ {
		if span = d.acc.Score(&l.Token, part, e.Token); span == cascade.SpanAnswer {
			answers++
			alarm = d.window.Token(l.LogProb) || alarm
		}
	}
	if thinks = e.Think || n > 0 && answers == 0 && span == cascade.SpanThink; thinks || !e.Token {
		return alarm, thinks
	}
	if n == 0 {
		d.acc.Missing()
		d.window.Token(math.NaN())
	}
	if d.began.IsZero() {
		d.began = now
	}
	return alarm, false
}

// weigh judges the text held back when the window is over. An alarm before that
// counts only where the answer is lost already.
func (d *Draft) weigh(alarm bool, ask func() Ask, now time.Time) stream.Output {
	switch {
	case d.began.IsZero():
	case d.window.Over(now.Sub(d.began)):
		a := ask()
		return d.decide(d.beginning(&a), &a, d.m.Window)
	case alarm:
		a := ask()
		if v := d.atBest(&a); v.Escalate {
			return d.decide(v, &a, d.m.Window)
		}
	}
	return stream.Output{}
}

// beginning is the verdict on an answer that goes on.
func (d *Draft) beginning(a *Ask) cascade.Verdict {
	s := d.acc.Signals()
	pe, known := d.c.calibration(d.tier, a).PrefixProbability(&s)
	return d.judge(pe, known, false, a)
}

// atBest is the verdict on an answer as if it ended well now. The product of the
// probabilities only falls: a doubt cannot be made good any more.
func (d *Draft) atBest(a *Ask) cascade.Verdict {
	s, cal := d.acc.Signals(), d.c.calibration(d.tier, a)
	pe, known := cal.Probability(&s)
	v := d.judge(pe, known, false, a)
	if begun, ok := cal.PrefixProbability(&s); ok {
		v.Confidence = min(v.Confidence, begun)
	}
	return v
}

func (d *Draft) judge(pe float64, known, failed bool, a *Ask) cascade.Verdict {
	return d.c.judge(d.tier, pe, known, failed, !d.early, d.votes, a)
}

func (d *Draft) decide(v cascade.Verdict, a *Ask, step func(cascade.Verdict) stream.Output) stream.Output {
	d.decided, d.early = true, !v.Escalate
	d.adopt(v)
	return d.promised(step(v), a)
}

// End is the end of the answer, which is then judged whole; failed says that it
// says nothing, or breaks its form. Where an earlier verdict has let text be shown, or has asked the
// large pool, that is the one that counts.
func (d *Draft) End(failed bool, a Ask) stream.Output {
	pe, known := d.whole(&a)
	d.failed = failed
	v := d.judge(pe, known, failed, &a)
	if failed && !v.Escalate {
		v.Reason = cascade.ReasonValidatorFailed // nobody else may try: the client is told what is wrong
	}
	out := d.m.EdgeEnd(v)
	if failed && out.Done { // also where the other pool was lost before this end
		out.End.Reason = cascade.ReasonValidatorFailed
	}
	switch {
	case out.Ask != stream.AskNone, !d.early && !d.decided:
		d.adopt(v)
	case d.early:
		v.Escalate, v.Wanted, v.Reason = false, false, out.End.Reason
		d.adopt(v)
	}
	return d.promised(out, &a)
}

// Score takes an answer that came at once. It reports whether it says nothing.
func (d *Draft) Score(w *Answer) (empty bool) {
	w.score(&d.acc)
	return w.empty()
}

// promised reserves what a request to the next tier may cost.
func (d *Draft) promised(out stream.Output, a *Ask) stream.Output {
	d.c.e.mu.Lock()
	defer d.c.e.mu.Unlock()
	if out.Ask == stream.AskNone || d.c.reserve(a) {
		return out
	}
	d.verdict.Escalate, d.c.verdict.Escalate = false, false
	return d.StandsIn(cascade.ReasonBudget)
}

// Fail is the loss of the answer before its end; why is the reason if another
// pool is asked instead.
func (d *Draft) Fail(why cascade.Reason, a Ask) stream.Output {
	d.judge(0, false, false, &a) // for the tier that comes next
	return d.promised(d.m.EdgeFail(why), &a)
}

// Overtaken says that the answer of another pool has begun.
func (d *Draft) Overtaken() stream.Output { return d.m.CloudBegin() }

// StandsIn says that no other pool gives an answer: this one stands, if there is
// one. One that broke its form says so, whatever kept the other away.
func (d *Draft) StandsIn(why cascade.Reason) stream.Output {
	if d.failed {
		why = cascade.ReasonValidatorFailed
	}
	return d.m.CloudFail(why)
}
