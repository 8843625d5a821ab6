package upstream

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
)

const tokenEvent = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,"model":"hub-edge","choices":[{"index":0,"delta":{"content":"light"},"logprobs":{"content":[{"token":"light","logprob":-0.0125,"bytes":[108],"top_logprobs":[{"token":"light","logprob":-0.0125,"bytes":[]},{"token":"fan","logprob":-4.5,"bytes":[]}]}],"refusal":null},"finish_reason":null}]}`

func TestReadEvent(t *testing.T) {
	for _, tt := range []struct {
		name, data, text, finish string
		bad, fault, think        bool
		probs                    []float64
	}{
		{name: "token", data: tokenEvent, text: `"light"`, probs: []float64{-.0125}},
		{name: "role", data: `{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`},
		{name: "null", data: `{"choices":[{"delta":{"content":null},"logprobs":null,"finish_reason":null}],"usage":null}`},
		{name: "another choice", data: `{"choices":[{"index":1,"delta":{"content":"x"}}]}`},
		{name: "both choices", data: `{"choices":[{"index":1,"delta":{"content":"x"}},{"index":0,"delta":{"content":"y"}}]}`, text: `"y"`},
		{name: "end", data: `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, finish: `"stop"`},
		{name: "reasoning", data: `{"choices":[{"index":0,"delta":{"reasoning_content":"hm"},"logprobs":{"content":[{"logprob":-1}]}}]}`, think: true},
		{name: "no probability", data: `{"choices":[{"index":0,"delta":{"content":"x"},"logprobs":{"content":[{"logprob":null}]}}]}`, text: `"x"`, probs: []float64{math.NaN()}},
		{name: "error", data: `{"error":{"message":"x"}}`, fault: true},
		{name: "cut", data: `{"choices":[`, bad: true},
		{name: "list", data: `[]`, bad: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := Read([]byte(tt.data))
			c := newCollector(Chat, nil, nil)
			_, err := c.score(&e)
			probs := c.now.LogProbs
			if string(e.Text) != tt.text || string(e.Finish) != tt.finish || e.Bad != tt.bad || (e.Err([]byte(tt.data)) != nil) != tt.fault || e.Think != tt.think || err != nil {
				t.Errorf("event %+v, %v", e, err)
			}
			if len(probs) != len(tt.probs) || len(probs) > 0 && probs[0] != tt.probs[0] && !math.IsNaN(tt.probs[0]) {
				t.Errorf("log-probabilities %v", probs)
			}
			if s := c.acc.Signals(); tt.think && (s.Tokens > 0 || s.Spans[cascade.SpanThink] != 1) {
				t.Error("reasoning counts as the answer")
			}
		})
	}
}

// A token costs no allocation from the event to the watch.
func TestTokensDoNotAllocate(t *testing.T) {
	_, guard := NewGuard(context.Background(), time.Minute, time.Minute)
	defer guard.Stop()
	c := newCollector(Chat, guard, func(p *Progress) error { return nil })
	c.text = make([]byte, 0, 1<<20)
	event := []byte(tokenEvent)
	if n := testing.AllocsPerRun(1000, func() {
		if err := c.add(event); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a token", n)
	}
	if c.finish(); c.d.Signals.Tokens != 1001 || c.d.Signals.Margins != 1001 {
		t.Errorf("signals %+v", c.d.Signals)
	}
}

func BenchmarkToken(b *testing.B) {
	_, guard := NewGuard(context.Background(), time.Minute, time.Minute)
	defer guard.Stop()
	c := newCollector(Chat, guard, func(p *Progress) error { return nil })
	event := []byte(tokenEvent)
	b.ReportAllocs()
	for b.Loop() {
		c.text = c.text[:0]
		if err := c.add(event); err != nil {
			b.Fatal(err)
		}
	}
}
