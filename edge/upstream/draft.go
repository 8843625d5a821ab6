package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
)

// Errors of Generate that a caller decides on. A refusal of the request itself
// is an *openai.Error with a status 4xx.
var (
	// ErrUnavailable says that the worker gave no answer at all.
	ErrUnavailable = errors.New("the local model does not answer")
	// ErrTruncated says that its stream broke off.
	ErrTruncated = errors.New("the local model's stream broke off")
)

// maxText bounds an answer, in bytes.
const maxText = 16 << 20

// Draft is a finished local answer.
type Draft struct {
	Text    string
	Pieces  []Piece // what each event of the stream added, in order
	Finish  string  // finish reason
	Usage   openai.Usage
	Counted bool // the worker gave no usage: the tokens were counted here
	Signals cascade.Signals
	TTFT    time.Duration
	Total   time.Duration
}

// Piece is one event's share of a Draft. Logprobs is as the worker sent it.
type Piece struct {
	Text     string
	Logprobs json.RawMessage
}

// Worker is the client of a model server that speaks OpenAI's API.
type Worker struct {
	HTTP             *http.Client
	URL              string
	FirstByte, Stall time.Duration
}

// Generate sends body to the worker as a stream with log-probabilities and
// collects the whole answer. body is not changed. The returned Draft holds
// what came before an error, for accounting; it is never nil.
func (w *Worker) Generate(ctx context.Context, kind Kind, body openai.Body, header http.Header) (*Draft, error) {
	start := time.Now()
	ctx, guard := NewGuard(ctx, w.FirstByte, w.Stall)
	defer guard.Stop()
	c := &collector{kind: kind, start: start, guard: guard}
	resp, err := w.post(ctx, kind, body, header)
	if err != nil {
		return &c.d, fmt.Errorf("%w: %w", ErrUnavailable, because(ctx, err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return &c.d, refusal(resp)
	}
	err = c.collect(sse.NewReader(resp.Body))
	c.finish()
	if err != nil {
		return &c.d, because(ctx, err)
	}
	return &c.d, nil
}

func (w *Worker) post(ctx context.Context, kind Kind, body openai.Body, header http.Header) (*http.Response, error) {
	b := body.Clone()
	delete(b, "weir")
	b.StripInner()
	b.Set("stream", true)
	b.Set("stream_options", map[string]bool{"include_usage": true})
	askLogprobs(kind, b)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+kind.Path(), bytes.NewReader(b.JSON()))
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	return w.HTTP.Do(req)
}

// askLogprobs makes the worker tell the log-probabilities whatever the client
// asked for.
func askLogprobs(kind Kind, b openai.Body) {
	if kind == Chat {
		b.Set("logprobs", true)
		return
	}
	if raw, ok := b["logprobs"]; !ok || string(raw) == "null" {
		b.Set("logprobs", 0)
	}
}

func refusal(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // a cut body still has its status
	e := openai.ParseError(resp.StatusCode, body)
	e.NoRetry = resp.StatusCode/100 == 4
	if e.Status/100 == 4 && e.Status != http.StatusTooManyRequests && e.Status != http.StatusRequestTimeout {
		return e
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, e)
}

type collector struct {
	kind    Kind
	start   time.Time
	guard   *Guard
	d       Draft
	text    strings.Builder
	acc     cascade.Accumulator
	counted int // tokens, where the worker gives no usage
	scored  int // tokens with a log-probability
	usage   bool
}

func (c *collector) collect(r *sse.Reader) error {
	for {
		event, err := r.Next()
		if errors.Is(err, io.EOF) {
			return c.end(ErrTruncated)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrTruncated, err)
		}
		c.guard.Progress()
		if string(event) == sse.Done {
			return c.end(ErrTruncated)
		}
		if err := c.add(event); err != nil {
			return err
		}
	}
}

// end accepts the end of a stream only after a finish reason.
func (c *collector) end(otherwise error) error {
	if c.d.Finish == "" {
		return otherwise
	}
	return nil
}

func (c *collector) add(event []byte) error {
	if e := EventError(event); e != nil {
		return fmt.Errorf("%w: %w", ErrTruncated, e)
	}
	var ch chunk
	if err := json.Unmarshal(event, &ch); err != nil {
		return fmt.Errorf("%w: an event is not JSON: %w", ErrTruncated, err)
	}
	if ch.Usage != nil {
		c.d.Usage, c.usage = *ch.Usage, true
	}
	for i := range ch.Choices {
		if ch.Choices[i].Index == 0 {
			if err := c.addChoice(&ch.Choices[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *collector) addChoice(ch *chunkChoice) error {
	text := ch.text()
	if c.text.Len()+len(text) > maxText {
		return fmt.Errorf("%w: the answer is longer than %d bytes", ErrTruncated, maxText)
	}
	n, err := observe(&c.acc, c.kind, ch.Logprobs)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTruncated, err)
	}
	c.scored += n
	if n == 0 && text != "" {
		n = 1
	}
	c.counted += n
	if text != "" && c.d.TTFT == 0 {
		c.d.TTFT = time.Since(c.start)
	}
	if text != "" || len(ch.Logprobs) > 0 && string(ch.Logprobs) != "null" {
		c.text.WriteString(text)
		c.d.Pieces = append(c.d.Pieces, Piece{text, ch.Logprobs})
	}
	if ch.FinishReason != nil && *ch.FinishReason != "" {
		c.d.Finish = *ch.FinishReason
	}
	return nil
}

func (c *collector) finish() {
	c.d.Text = c.text.String()
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
