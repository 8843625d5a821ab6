package cascade

import "math"

// Token is what a runner tells about one generated token. Margin and Entropy
// are NaN when the runner did not compute them.
type Token struct {
	LogProb float64 // of the chosen token, <= 0
	Margin  float64 // log-probability of the best minus that of the second
	Entropy float64 // nats, over the renormalised top-k
	Span    Span
}

// Accumulator collects Signals token by token in constant space. The zero
// value is ready to use. It is not safe for concurrent use.
type Accumulator struct {
	spans  [spanCount]spanStat
	text   spanner
	calls  jsonForm // of tool calls
	called bool
	// before is the answer before a token that may begin a mark of reasoning.
	before spanStat
	marks  int // tokens of marks that had begun as answer
}

type spanStat struct {
	s            Signals
	bad          bool
	sq           float64
	sumMargin    float64
	sumEntropies float64
}

// Add adds a token of the answer span: its log-probability and the margin to
// the second best (NaN when unknown). The end token counts.
func (a *Accumulator) Add(logprob, margin float64) {
	a.spans[SpanAnswer].add(logprob, margin, math.NaN())
}

// AddToken adds a token of any span. A span out of range counts as answer.
func (a *Accumulator) AddToken(t Token) {
	span := t.Span
	if span >= spanCount {
		span = SpanAnswer
	}
	a.spans[span].add(t.LogProb, t.Margin, t.Entropy)
}

// ExpectJSON says, before the first token, that the text is to be JSON.
func (a *Accumulator) ExpectJSON() { a.text.json = true }

// AddText adds a token with its text, "" for one that adds none as the end token,
// and tells its span; t.Span is not looked at. Inline reasoning, marked by <think>
// and </think>, is not scored, nor are keys and punctuation where JSON is expected.
func (a *Accumulator) AddText(text []byte, t Token) Span {
	r := a.text.read(text)
	answer := &a.spans[SpanAnswer]
	switch {
	case r.closed:
		a.spans[SpanThink], *answer = *answer, spanStat{}
	case r.opened:
		a.marks += answer.s.Tokens - a.before.s.Tokens
		*answer = a.before
	}
	if r.begun && !r.solid {
		a.before = *answer
	}
	t.Span = r.span
	if a.called && t.Span == SpanAnswer && len(text) > 0 {
		t.Span = SpanProse
	}
	a.AddToken(t)
	if r.begun && r.solid {
		a.before = *answer
	}
	return t.Span
}

// AddCall adds a token of a tool call with its text, and tells its span: of the
// call's JSON only values are the answer. Text before the first call is prose.
func (a *Accumulator) AddCall(text []byte, t Token) Span {
	if !a.called {
		a.called = true
		a.spans[SpanProse], a.spans[SpanAnswer] = a.spans[SpanAnswer], spanStat{}
	}
	t.Span = SpanStructure
	for _, b := range text {
		inside := a.calls.inside()
		if a.calls.value(b) && inside {
			t.Span = SpanAnswer
		}
	}
	a.AddToken(t)
	return t.Span
}

// Thinking reports whether the text so far ends inside inline reasoning.
func (a *Accumulator) Thinking() bool { return a.text.think }

// Missing notes a token of the answer for which the runner gave no
// log-probability. The answer is then not judged by its signals.
func (a *Accumulator) Missing() { a.spans[SpanAnswer].bad = true }

// Reset empties the accumulator for the next answer.
func (a *Accumulator) Reset() { *a = Accumulator{} }

// Signals returns the signals of the answer span so far. Text that ends inside
// reasoning has no answer yet: they are not usable then.
func (a *Accumulator) Signals() Signals {
	s := a.SpanSignals(SpanAnswer)
	s.Usable = s.Usable && !a.text.think
	return s
}

// SpanSignals returns the signals of one span; an unknown span is unusable.
func (a *Accumulator) SpanSignals(span Span) Signals {
	if span >= spanCount {
		return Signals{}
	}
	s := a.spans[span].signals()
	for i := range a.spans {
		s.Spans[i] = a.spans[i].s.Tokens
	}
	s.Spans[SpanThink] += a.marks
	return s
}

func (st *spanStat) add(lp, margin, entropy float64) {
	if !(lp <= 1e-3) { // NaN too
		st.bad = true
		return
	}
	lp = max(-50, min(0, lp))
	s := &st.s
	if s.Tokens == 0 {
		s.FirstLogProb, s.EWMALogProb, s.MinLogProb = lp, lp, lp
	} else {
		s.EWMALogProb += (lp - s.EWMALogProb) / 16
		s.MinLogProb = min(s.MinLogProb, lp)
	}
	s.Tokens++
	s.SumLogProb += lp
	st.sq += lp * lp
	if lp < -math.Ln2 {
		s.Low++
	}
	s.hist[phiBin(lp)]++
	if !math.IsNaN(margin) {
		if s.Margins == 0 || margin < s.MinMargin {
			s.MinMargin = margin
		}
		s.Margins++
		st.sumMargin += margin
	}
	if !math.IsNaN(entropy) {
		s.Entropies++
		st.sumEntropies += entropy
	}
}

// phiEdges are the log-probabilities at the lower ends of the bins, so that a
// token finds its bin by comparisons instead of two transcendental functions.
// The table is padded to a power of two.
var phiEdges = func() (e [32]float64) {
	for i := range e {
		phi := phiLow + float64(i)*(phiHigh-phiLow)/phiBins
		switch {
		case i >= phiBins:
			e[i] = math.Inf(1)
		case phi < 0:
			e[i] = phi - math.Ln2
		default:
			e[i] = math.Log1p(-math.Exp(-phi - math.Ln2))
		}
	}
	return e
}()

// phiBin returns the bin of Phi(lp), by five halvings.
func phiBin(lp float64) int {
	at := 0
	for step := 16; step > 0; step /= 2 {
		if next := (at + step) & 31; lp >= phiEdges[next] {
			at = next
		}
	}
	return at
}

func (st *spanStat) signals() Signals {
	s := st.s
	if s.Tokens > 0 {
		n := float64(s.Tokens)
		s.MeanLogProb = s.SumLogProb / n
		s.VarLogProb = math.Max(0, st.sq/n-s.MeanLogProb*s.MeanLogProb)
		s.Usable = !st.bad
	}
	if s.Margins > 0 {
		s.MeanMargin = st.sumMargin / float64(s.Margins)
	}
	if s.Entropies > 0 {
		s.MeanEntropy = st.sumEntropies / float64(s.Entropies)
	}
	return s
}
