package logprobs

import (
	"math"
	"testing"

	"github.com/weirhq/weir/cascade"
)

func TestTokens(t *testing.T) {
	for _, tt := range []struct {
		raw    string
		texts  []string
		probs  []float64
		margin float64
	}{
		{`{"content":[{"token":"a","logprob":-0.5,"top_logprobs":[{"logprob":-0.5},{"logprob":-2}]},{"token":"b","logprob":null}]}`, []string{`"a"`, `"b"`}, []float64{-.5, math.NaN()}, 1.5},
		{`{"tokens":["a","b"],"token_logprobs":[-0.5,-1]}`, []string{`"a"`, `"b"`}, []float64{-.5, -1}, math.NaN()},
		{`{"token_logprobs":[-0.5],"content":null}`, []string{""}, []float64{-.5}, math.NaN()},
		{`null`, nil, nil, 0},
	} {
		n := 0
		for l := Of([]byte(tt.raw)); l.Next(); n++ {
			same := l.LogProb == tt.probs[n] || math.IsNaN(l.LogProb) && math.IsNaN(tt.probs[n])
			margin := n > 0 || l.Margin == tt.margin || math.IsNaN(l.Margin) && math.IsNaN(tt.margin)
			if string(l.Text) != tt.texts[n] || !same || !margin {
				t.Errorf("%s: token %d is %+v", tt.raw, n, l.Token)
			}
		}
		if n != len(tt.texts) {
			t.Errorf("%s: %d tokens", tt.raw, n)
		}
	}
	if l := Of([]byte(`[1]`)); l.OK() {
		t.Error("a list passes as log-probabilities")
	}
}

func TestScore(t *testing.T) {
	var s Scorer
	for _, tt := range []struct {
		part  Part
		text  string
		shown bool
		span  cascade.Span
	}{
		{Think, `"hm"`, true, cascade.SpanThink},
		{Text, `"\u003cthink>"`, true, cascade.SpanThink},
		{Text, `"</think>"`, true, cascade.SpanThink},
		{Text, `"a"`, true, cascade.SpanAnswer},
		{Calls, `"{"`, true, cascade.SpanStructure},
		{Calls, `"\"k\":\"v\""`, true, cascade.SpanAnswer},
		{Text, `"more"`, true, cascade.SpanProse},
		{Text, `"</s>"`, false, cascade.SpanAnswer},
	} {
		if got := s.Score(&Token{Text: []byte(tt.text), LogProb: -1, Margin: 1}, tt.part, tt.shown); got != tt.span {
			t.Errorf("%s is of span %d, want %d", tt.text, got, tt.span)
		}
	}
	if got := s.Signals(); got.Tokens != 2 || got.SumLogProb != -2 {
		t.Errorf("%+v", got)
	}
}

// Whatever a server sends, the walk ends, and what it scores is finite.
func FuzzOf(f *testing.F) {
	f.Add([]byte(`{"content":[{"token":"\u00e9","logprob":-1e308,"top_logprobs":[{},{}]}]}`))
	f.Add([]byte(`{"tokens":["\ud800"],"token_logprobs":[1,null,"x"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Scorer
		for l := Of(data); l.Next(); {
			s.Score(&l.Token, Text, true)
		}
		if got := s.Signals(); math.IsNaN(got.SumLogProb) || math.IsInf(got.SumLogProb, 0) {
			t.Fatalf("%+v", got)
		}
	})
}
