package api

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/handoff"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/internal/openai"
)

// Bounds of a move in stages, after Llumnix: the copy is repeated until few
// tokens were made meanwhile, but not for ever.
const (
	maxStages   = 3 // and the last one
	fewTokens   = 16
	maxMoving   = 4                // requests at a time: each holds a copy of its KV
	moveTimeout = 20 * time.Second // of all stages
)

// Errors of a move. The request goes on here.
var (
	errMoving = errors.New("this request moves already")
	errStays  = errors.New("the request has ended or its state cannot be copied")
)

// destination is where an order sends a request.
type destination struct {
	Name string `json:"name"`
	Host string `json:"host"`
	Port int    `json:"port"`
}

// move is a request on its way: what its destination has of its KV.
type move struct {
	handle handoff.Handle
	to     destination
	tokens int
	kv     [][]byte
	starts []int
}

// item is the hand-off of the request, whose last part h is.
func (m *move) item(h *loop.Handoff, f engine.Fingerprint) *handoff.Item {
	whole := *h
	whole.From, whole.KV = 0, slices.Concat(m.kv, h.KV)
	return handoff.NewStaged(whole, f, append(m.starts, h.From))
}

// migrate asks a running request to go on elsewhere: at a destination, to which
// all but the last tokens are copied before it stops here, or wherever the
// gateway finds.
func (s *Server) migrate(w http.ResponseWriter, r *http.Request) {
	var o struct {
		Operation string       `json:"operation"`
		To        *destination `json:"to,omitempty"`
		Stages    int          `json:"stages"` // in the answer
	}
	if err := readOrder(r, &o); err != nil {
		openai.AsError(err).Write(w, nil)
		return
	}
	s.mu.Lock()
	c := s.calls[o.Operation]
	s.mu.Unlock()
	switch {
	case c == nil:
		(&openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Code: "operation_unknown",
			Message: "no request of this operation runs here", NoRetry: true}).Write(w, nil)
		return
	case !c.loop.Begun():
		conflict("operation_waiting", "this request has no token yet: send it elsewhere instead").Write(w, nil)
		return
	}
	o.Stages = 1
	if o.To == nil || c.m.KV == nil || c.m.Info.KVWhole {
		c.loop.Migrate(0, c.staying(nil))
	} else if n, err := c.copyAhead(r.Context(), *o.To); err != nil {
		c.m.Metrics.Migrations.WithLabelValues(metrics.MigratedAborted).Inc()
		s.log.Warn("a request stays here", "operation", o.Operation, "to", o.To.Name, "error", err)
		conflict("migration_aborted", "the request goes on here: its KV could not be copied").Write(w, nil)
		return
	} else {
		o.Stages += n
	}
	writeJSON(w, http.StatusOK, o)
}

func conflict(code, message string) *openai.Error {
	return &openai.Error{Status: http.StatusConflict, Type: openai.TypeInvalidRequest, Code: code, Message: message, NoRetry: true}
}

// copyAhead copies the request's KV to a destination while it goes on, until
// little is missing, and then lets it leave. It returns how many copies that took.
func (c *call) copyAhead(ctx context.Context, to destination) (stages int, err error) {
	ctx, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	select {
	case c.s.moving <- struct{}{}:
		defer func() { <-c.s.moving }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	m := &move{handle: handoff.NewHandle(), to: to}
	if !c.move.CompareAndSwap(nil, m) {
		return 0, errMoving
	}
	for made := fewTokens + 1; made > fewTokens && stages < maxStages; stages++ {
		if made, err = c.stage(ctx, m); err != nil {
			c.move.Store(nil)
			return stages, err
		}
	}
	c.loop.Migrate(m.tokens, c.staying(m))
	return stages, nil
}

// staying ends a move whose last part cannot be had: the request may be asked to
// move again.
func (c *call) staying(m *move) func() {
	return func() {
		c.move.CompareAndSwap(m, nil)
		c.m.Metrics.Migrations.WithLabelValues(metrics.MigratedAborted).Inc()
	}
}

// stage sends what has been made since the last one, and returns how many tokens
// that are.
func (c *call) stage(ctx context.Context, m *move) (made int, err error) {
	h := c.loop.Stage(ctx, m.tokens)
	if h == nil {
		return 0, errors.Join(errStays, ctx.Err())
	}
	dst := handoff.Source{Addr: net.JoinHostPort(m.to.Host, strconv.Itoa(m.to.Port)), Handle: m.handle, Operation: c.operation}
	if err := c.m.KV.Endpoint.Stage(ctx, dst, handoff.NewItem(*h, c.m.Info.Fingerprint)); err != nil {
		return 0, err
	}
	m.starts, m.kv = append(m.starts, m.tokens), append(m.kv, h.KV...)
	made = len(h.Tokens) - m.tokens
	m.tokens = len(h.Tokens)
	return made, nil
}

// migrated is the value of weir_migrated: what the gateway adds to the request
// that it sends to another worker, to To where that has most of the KV already.
// KV is absent where there was no room to offer it; then the other worker
// computes all tokens.
type migrated struct {
	To     string          `json:"to,omitempty"`
	KV     json.RawMessage `json:"kv_transfer_params,omitempty"`
	Resume resumption      `json:"weir_resume"`
}

// leave describes how a migrated answer goes on elsewhere.
func (c *call) leave(r loop.Result) []byte {
	text := c.m.Pieces.Text(r.Generated)
	how, stages := metrics.MigratedWhole, 1
	out := migrated{KV: c.offer(r.Handoff), Resume: resumption{Text: string(text[:len(text)-r.Unshown]), Tokens: r.Generated}}
	if mv := c.move.Load(); mv != nil && r.Handoff.From > 0 {
		out.To = mv.to.Name
		how, stages = metrics.MigratedStaged, 1+len(mv.starts)
	}
	c.m.Metrics.Migrations.WithLabelValues(how).Inc()
	c.m.Metrics.Stages.Observe(float64(stages))
	data, err := json.Marshal(out)
	if err != nil { // plain fields
		panic(err)
	}
	return data
}

// migrated is the last event of a stream that goes on elsewhere. Its usage counts
// the tokens, too, whose text only the next worker will show.
func (st *streaming) migrated() error {
	data := append([]byte(`{"weir_migrated":`), st.c.leave(st.c.result)...)
	data = append(appendUsage(data, st.c.result), '}')
	st.c.result.Handoff = nil
	return st.data(data)
}
