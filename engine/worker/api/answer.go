package api

import (
	"context"
	"net/http"
	"time"

	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
)

// writeTimeout is how long one piece of an answer may take to be accepted by
// the client's side before it counts as gone. The loop does not wait for it.
const writeTimeout = 30 * time.Second

// whole collects an answer and sends it in one piece.
func (c *call) whole(ctx context.Context, s *loop.Stream) error {
	var all, b loop.Batch
	for all.Finish == "" {
		if err := s.Next(ctx, &b); err != nil {
			c.result, c.finish = s.Result(), b.Finish
			return c.fail(gone(ctx, err))
		}
		all.Text = append(all.Text, b.Text...)
		all.Tokens = append(all.Tokens, b.Tokens...)
		all.Top = append(all.Top, b.Top...)
		all.Finish = b.Finish
	}
	c.result, c.finish = s.Result(), all.Finish
	if all.Finish == loop.FinishAbort {
		return c.fail(gone(ctx, loop.ErrClosed))
	}
	member, value := "kv_transfer_params", []byte(nil)
	if all.Finish == loop.FinishMigrated {
		member, value = "weir_migrated", c.leave(c.result)
	} else {
		value = c.offer(c.result.Handoff)
	}
	body := newChunks(c.shape, false).whole(all, c.result, member, value)
	c.result.Handoff = nil
	c.w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(writeTimeout)) // not every writer can
	_, err := c.w.Write(body)
	return err
}

// gone prefers the client's leaving as the cause of an end.
func gone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &openai.Error{Status: 499, Type: openai.TypeInvalidRequest, Code: "client_closed_request",
			Message: "the client closed the request", Cause: context.Cause(ctx)}
	}
	return err
}

// streaming is the state of an answer sent in chunks.
type streaming struct {
	c      *call
	w      *sse.Writer
	rc     *http.ResponseController
	chunks *chunks
	// Tokens whose text is not shown yet; they come with the next text.
	tokens, top []sample.Logprob
}

// stream sends an answer as server-sent events. Headers leave with the first
// token, so that what fails before it still has its status.
func (c *call) stream(ctx context.Context, s *loop.Stream) error {
	st := &streaming{c: c, rc: http.NewResponseController(c.w), chunks: newChunks(c.shape, true)}
	var b loop.Batch
	for {
		if err := s.Next(ctx, &b); err != nil {
			c.result, c.finish = s.Result(), loop.FinishError
			return st.broken(gone(ctx, err))
		}
		if b.Finish == loop.FinishAbort {
			c.result, c.finish = s.Result(), b.Finish
			return st.broken(gone(ctx, loop.ErrClosed))
		}
		if err := st.send(&b); err != nil {
			c.result, c.finish = s.Result(), loop.FinishAbort
			return err
		}
		if b.Finish != "" {
			c.result, c.finish = s.Result(), b.Finish
			if b.Finish == loop.FinishMigrated {
				return st.migrated()
			}
			return st.last(b.Finish)
		}
	}
}

// send writes what has come: one chunk, or none while its text is held back.
func (st *streaming) send(b *loop.Batch) error {
	if st.w == nil {
		if err := st.begin(); err != nil {
			return err
		}
	}
	if st.c.shape.logprobs || st.c.shape.tokenIDs {
		st.tokens = append(st.tokens, b.Tokens...)
		st.top = append(st.top, b.Top...)
	}
	if len(b.Text) == 0 {
		return nil
	}
	err := st.data(st.chunks.text(b.Text, st.tokens, st.top))
	st.tokens, st.top = st.tokens[:0], st.top[:0]
	return err
}

func (st *streaming) begin() error {
	st.deadline()
	st.w = sse.Start(st.c.w)
	if !st.c.shape.chat || st.c.resumed != "" {
		return nil
	}
	return st.data(st.chunks.role())
}

func (st *streaming) last(why loop.Finish) error {
	if err := st.data(st.chunks.finish(why, st.tokens, st.top)); err != nil {
		return err
	}
	if st.c.shape.includeUsage {
		if err := st.data(st.chunks.usage(st.c.result)); err != nil {
			return err
		}
	}
	st.deadline()
	return st.w.Done()
}

// broken ends a stream that cannot go on: by an error response while nothing
// has left, by an error event without [DONE] afterwards.
func (st *streaming) broken(err error) error {
	if st.w == nil {
		return st.c.fail(err)
	}
	st.deadline()
	_ = st.w.Data(asError(err).Body(nil)) // the client may be gone
	return err
}

func (st *streaming) data(b []byte) error {
	st.deadline()
	return st.w.Data(b)
}

func (st *streaming) deadline() { _ = st.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) }
