package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/internal/contract"
)

// run is one completion request being served.
type run struct {
	e      *Engine
	w      http.ResponseWriter
	q      *request
	call   Call
	fault  *Script // nil: all goes well
	id     string
	began  time.Time
	tokens []string
	finish string
	sent   int // of this leg
	from   int // tokens that another leg has sent
	flight *flight
	first  time.Time
}

// errStopped says that the hook has taken the request over.
var errStopped = errors.New("stopped by hook")

func (e *Engine) completions(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &run{e: e, w: w, began: time.Now(), call: Call{Number: int(e.calls.Add(1)), Path: r.URL.Path, Leg: Whole}}
		ctx := r.Context()
		if e.drains.Load() {
			writeError(w, http.StatusServiceUnavailable, "the engine drains", "")
			return
		}
		if c.hook(ctx, Arrived) {
			return
		}
		var err error
		if c.q, err = readRequest(r, chat); err == nil {
			err = c.check()
		}
		if err != nil {
			c.refuse(err)
			return
		}
		c.call.Stream, c.call.Leg = c.q.Stream, c.q.leg
		c.flight = e.flights.add(r.Header.Get(contract.HeaderOperation), c.q.tokens)
		defer e.flights.remove(c.flight)
		c.fault = e.faults.pick(c.q.leg)
		if c.strike(ctx, Arrived) {
			return
		}
		c.serve(ctx, r.Host)
	}
}

func (c *run) hook(ctx context.Context, s Stage) bool {
	return c.strike(ctx, s) || c.e.o.Hook != nil && c.e.o.Hook(ctx, s, c.call, c.w)
}

// notFound is the name of a model that is not served.
type notFound string

func (n notFound) Error() string { return fmt.Sprintf("The model `%s` does not exist.", string(n)) }

func (c *run) check() error {
	o := &c.e.o
	switch {
	case c.q.Model != o.Model:
		return notFound(c.q.Model)
	case c.q.tokens >= o.Context:
		return &badRequest{"input_tokens", fmt.Sprintf("This model's maximum context length is %d tokens, the prompt has %d.", o.Context, c.q.tokens)}
	}
	for _, n := range []*int{c.q.MaxTokens, c.q.MaxCompletionTokens} {
		if n != nil && *n < 1 {
			return &badRequest{"max_tokens", "max_tokens must be at least 1"}
		}
	}
	return nil
}

func (c *run) refuse(err error) {
	var bad *badRequest
	var missing notFound
	switch {
	case errors.As(err, &bad):
		writeError(c.w, http.StatusBadRequest, bad.message, bad.param)
	case errors.As(err, &missing):
		writeError(c.w, http.StatusNotFound, err.Error(), "model")
	default:
		writeError(c.w, http.StatusInternalServerError, err.Error(), "")
	}
}

// serve queues, computes and answers.
func (c *run) serve(ctx context.Context, host string) {
	e := c.e
	c.id = "cmpl-" + uuid.NewString()
	if c.q.chat {
		c.id = "chat" + c.id
	}
	if !e.admit(ctx) {
		e.metrics.success.WithLabelValues("abort").Inc()
		return
	}
	defer e.leave()
	e.metrics.queue.Observe(time.Since(c.began).Seconds())
	e.metrics.prompt.Add(float64(c.q.tokens))
	ids, ok := e.blocks.take((c.q.tokens + e.o.BlockSize - 1) / e.o.BlockSize)
	if !ok {
		writeError(c.w, http.StatusServiceUnavailable, "no KV blocks are free", "")
		return
	}
	keep := false
	defer func() {
		if !keep {
			e.blocks.give(len(ids))
		}
	}()
	c.tokens, c.finish = e.answer(c.q)
	if err := c.skipResumed(); err != nil {
		c.refuse(err)
		return
	}
	err := c.prefill(ctx)
	if err == nil {
		if c.q.Stream {
			keep, err = c.stream(ctx, host, ids)
		} else {
			keep, err = c.whole(ctx, host, ids)
		}
	}
	c.account(ctx, err)
}

// admit waits for one of MaxSeqs slots.
func (e *Engine) admit(ctx context.Context) bool {
	e.waiting.Add(1)
	defer e.waiting.Add(-1)
	select {
	case e.slots <- struct{}{}:
		e.running.Add(1)
		return true
	case <-ctx.Done():
		return false
	}
}

func (e *Engine) leave() {
	e.running.Add(-1)
	<-e.slots
}

// errLoad is a decode leg whose blocks could not be fetched.
var errLoad = errors.New("KV blocks could not be loaded")

// prefill takes as long as the prompt's tokens that are computed here.
func (c *run) prefill(ctx context.Context) error {
	o := &c.e.o
	wait := o.TTFT
	remote := false
	if c.q.leg == Decode && c.q.source.complete() {
		if err := c.fetch(ctx); err != nil {
			o.Log.Warn("blocks not fetched", "error", err)
			c.e.metrics.failed.Inc()
			if !o.Recompute {
				return errLoad
			}
		} else {
			remote = true
		}
	}
	if !remote {
		wait += time.Duration(c.q.tokens) * o.PerPromptToken
	}
	return sleep(ctx, wait)
}

func (c *run) fetch(ctx context.Context) error {
	if c.fault != nil && c.fault.Fault == FaultTransfer {
		return errors.New("the transfer failed, as scripted")
	}
	return c.e.fetch(ctx, c.q.source, c.q.tokens)
}

// fetch asks the prefill engine for the blocks.
func (e *Engine) fetch(ctx context.Context, s source, tokens int) error {
	began := time.Now()
	u := "http://" + net.JoinHostPort(*s.Host, strconv.Itoa(*s.Port)) + "/fake/blocks/" + *s.RequestID
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u, nil)
	if err != nil {
		return fmt.Errorf("address of the prefill engine: %w", err)
	}
	req.Header.Set("X-Engine-Id", *s.EngineID)
	resp, err := e.client.Do(req)
	if err != nil {
		return fmt.Errorf("fetch blocks: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("fetch blocks: %s", resp.Status)
	}
	e.metrics.transfer.Observe(time.Since(began).Seconds())
	e.metrics.transferred.Observe(float64(tokens * bytesPerToken))
	return nil
}

// bytesPerToken is what a token's KV would take: a 7B model's at 16 bits.
const bytesPerToken = 131072

// handOver is the prefill engine's side of fetch.
func (e *Engine) handOver(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Engine-Id") != e.o.EngineID || !e.blocks.fetch(r.PathValue("id")) {
		writeError(w, http.StatusNotFound, "these blocks are not here", "")
		return
	}
	w.WriteHeader(http.StatusOK)
}

// itl is the time of a token as busy as the engine is now, and modelled what it
// should be.
func (e *Engine) itl() time.Duration { return time.Duration(e.pace.Load()) * e.modelled() }

func (e *Engine) modelled() time.Duration {
	return e.o.ITL + time.Duration(e.running.Load())*e.o.PerSequence
}

// next waits for a token's time and lets the hook act.
func (c *run) next(ctx context.Context) error {
	if c.sent > 0 {
		if err := sleep(ctx, c.e.itl()); err != nil {
			return err
		}
	}
	c.call.Token = c.sent
	if c.hook(ctx, Token) {
		return errStopped
	}
	now := time.Now()
	if c.sent == 0 {
		c.first = now
		c.e.metrics.ttft.Observe(now.Sub(c.began).Seconds())
	} else {
		c.e.metrics.itl.Observe(c.e.itl().Seconds())
	}
	c.sent++
	c.e.steps.Add(1)
	c.flight.generated.Add(1)
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// account ends a request in the metrics, and an error in an answer where one
// can still be given.
func (c *run) account(ctx context.Context, err error) {
	m := c.e.metrics
	m.generated.Add(float64(c.sent))
	m.e2e.Observe(time.Since(c.began).Seconds())
	switch {
	case err == nil:
		m.success.WithLabelValues(c.finish).Inc()
	case errors.Is(err, errLoad):
		m.success.WithLabelValues("error").Inc()
		writeError(c.w, http.StatusInternalServerError, "Internal server error", "")
	case ctx.Err() != nil:
		m.success.WithLabelValues("abort").Inc()
	}
}

func (e *Engine) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": e.o.Model, "object": "model", "created": e.created.Unix(), "owned_by": "vllm", "root": e.o.Model,
		"parent": nil, "max_model_len": e.o.Context, "permission": []any{}}}})
}
