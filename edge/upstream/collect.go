package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/jsonscan"
	"github.com/weirhq/weir/internal/logprobs"
	"github.com/weirhq/weir/internal/sse"
)

// collector makes a Draft of a stream's events.
type collector struct {
	kind    Kind
	start   time.Time
	guard   *Guard
	watch   Watch
	d       Draft
	text    []byte
	acc     logprobs.Scorer
	span    cascade.Span // of the last token
	now     Progress
	counted int // tokens, where the worker gives no usage
	scored  int // tokens with a log-probability
	usage   bool
}

func newCollector(kind Kind, guard *Guard, watch Watch) *collector {
	c := &collector{kind: kind, start: time.Now(), guard: guard, watch: watch}
	c.now.Draft, c.now.c = &c.d, c
	return c
}

func (c *collector) collect(r *sse.Reader) error {
	for {
		event, err := r.Next()
		if errors.Is(err, io.EOF) {
			return c.end()
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrTruncated, err)
		}
		c.guard.Progress()
		if string(event) == sse.Done {
			return c.end()
		}
		if err := c.add(event); err != nil {
			return err
		}
	}
}

// end accepts the end of a stream only after a finish reason.
func (c *collector) end() error {
	if c.d.Finish == "" {
		return ErrTruncated
	}
	return nil
}

// add takes one event. Unless it is the last or of a tool call it allocates
// nothing but what the answer's text needs.
func (c *collector) add(data []byte) error {
	e := Read(data)
	if e.Bad {
		return fmt.Errorf("%w: an event is not JSON: %.80q", ErrTruncated, data)
	}
	if fault := e.Err(data); fault != nil {
		return fmt.Errorf("%w: %w", ErrTruncated, fault)
	}
	if e.Usage != nil {
		if err := json.Unmarshal(e.Usage, &c.d.Usage); err != nil {
			return fmt.Errorf("%w: usage: %w", ErrTruncated, err)
		}
		c.usage = true
	}
	if err := c.addPiece(&e); err != nil {
		return err
	}
	if e.Finish != nil {
		finish, _ := jsonscan.AppendText(nil, e.Finish) // anything else is no end
		c.d.Finish = string(finish)
	}
	return nil
}

func (c *collector) addPiece(e *Event) error {
	if e.Empty() {
		return nil
	}
	n, err := c.score(e)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTruncated, err)
	}
	c.scored += n
	if n == 0 && e.Visible() {
		n = 1
	}
	c.counted += n
	if err := c.addText(e); err != nil {
		return err
	}
	if e.Visible() && c.d.TTFT == 0 {
		c.d.TTFT = time.Since(c.start)
	}
	if c.watch == nil {
		return nil
	}
	c.now.Piece, c.now.Think = e.Piece, e.Think || n > 0 && len(c.now.LogProbs) == 0 && c.span == cascade.SpanThink
	return c.watch(&c.now)
}

func (c *collector) addText(e *Event) error {
	if e.Text != nil {
		var ok bool
		if c.text, ok = jsonscan.AppendText(c.text, e.Text); !ok {
			return fmt.Errorf("%w: a piece of text is no JSON string: %.80q", ErrTruncated, e.Text)
		}
	}
	size := len(c.text)
	if e.Calls != nil {
		var err error
		if c.d.Calls, err = addCalls(c.d.Calls, e.Calls); err != nil {
			return fmt.Errorf("%w: %w", ErrTruncated, err)
		}
		for i := range c.d.Calls {
			size += len(c.d.Calls[i].Arguments)
		}
	}
	if size > maxText {
		return fmt.Errorf("%w: the answer is longer than %d bytes", ErrTruncated, maxText)
	}
	return nil
}

func (c *collector) finish() {
	c.d.Text = string(c.text)
	c.d.Total = time.Since(c.start)
	if !c.usage {
		c.d.Counted = true
		c.d.Usage.CompletionTokens, c.d.Usage.TotalTokens = c.counted, c.counted
	}
	// The end token is scored but not counted by some servers, hence one less.
	if c.scored < c.d.Usage.CompletionTokens-1 || c.scored == 0 {
		c.acc.Missing()
	}
	c.d.Signals = c.acc.Signals()
}
