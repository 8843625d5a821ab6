package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// Draft is a finished local answer, or what there is of it.
type Draft struct {
	Text    string
	Calls   []Call
	Finish  string // finish reason
	Usage   openai.Usage
	Counted bool // the worker gave no usage: the tokens were counted here
	Signals cascade.Signals
	TTFT    time.Duration
	Total   time.Duration
}

// Progress is an answer so far, after an event that added to it. It is valid
// during the call of a Watch only.
type Progress struct {
	Piece
	LogProbs []float64 // of the event's tokens of the answer, NaN for unknown
	Think    bool      // the event is reasoning, not the answer
	Draft    *Draft    // so far, without Text, Usage and Signals

	c *collector
}

// Signals are those of the answer so far.
func (p *Progress) Signals() cascade.Signals { return p.c.acc.Signals() }

// Snapshot copies the answer so far, with its text and the tokens counted.
func (p *Progress) Snapshot() *Draft {
	d := *p.Draft
	d.Text = string(p.c.text)
	d.Counted, d.Usage.CompletionTokens, d.Signals = true, p.c.counted, p.Signals()
	return &d
}

// Watch is told of what is added to an answer as it comes. Its error ends the
// generation and is returned as it is.
type Watch func(*Progress) error

// Worker is the client of a model server that speaks OpenAI's API.
type Worker struct {
	HTTP             *http.Client
	URL              string
	FirstByte, Stall time.Duration
}

// Ask is a request to a worker.
type Ask struct {
	Kind   Kind
	Body   openai.Body // as the client sent it; it is not changed
	Header http.Header
	JSON   bool // the answer is to be JSON: of its text only values are scored
}

// Generate sends the request to the worker as a stream with log-probabilities,
// tells watch of each piece and collects the whole answer. The returned Draft holds
// what came before an error, for accounting; it is never nil.
func (w *Worker) Generate(ctx context.Context, ask Ask, watch Watch) (*Draft, error) {
	ctx, guard := NewGuard(ctx, w.FirstByte, w.Stall)
	defer guard.Stop()
	c := newCollector(ask.Kind, guard, watch)
	if ask.JSON {
		c.acc.ExpectJSON()
	}
	resp, err := w.post(ctx, ask.Kind, ask.Body, ask.Header)
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
