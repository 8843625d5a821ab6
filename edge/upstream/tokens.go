package upstream

import (
	"fmt"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/logprobs"
)

// score adds an event's tokens to the signals and returns their number. It leaves
// the log-probabilities of those of the answer in now, NaN where one has none.
func (c *collector) score(e *Event) (n int, err error) {
	c.now.LogProbs = c.now.LogProbs[:0]
	if e.Logprobs == nil {
		return 0, nil
	}
	part := logprobs.Text
	switch {
	case e.Think:
		part = logprobs.Think
	case e.Calls != nil:
		part = logprobs.Calls
	}
	l := logprobs.Of(e.Logprobs)
	if !l.OK() {
		return 0, fmt.Errorf("log-probabilities are no object: %.80q", e.Logprobs)
	}
	for ; l.Next(); n++ {
		if c.span = c.acc.Score(&l.Token, part, e.Visible()); c.span == cascade.SpanAnswer {
			c.now.LogProbs = append(c.now.LogProbs, l.LogProb)
		}
	}
	return n, nil
}
