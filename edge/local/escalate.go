package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
	"github.com/weirhq/weir/internal/telemetry"
)

// errCloudSilent says that the cloud took the request and then kept silent, or
// that its answer was not understood.
var errCloudSilent = errors.New("the cloud's answer did not come")

// maxReply bounds a whole answer of the cloud, in bytes.
const maxReply = 32 << 20

// wholeTimeout bounds the wait for an answer that is no stream. Such an answer
// sends nothing while it is made; that its gateway lives is the link's to watch.
const wholeTimeout = 10 * time.Minute

// cloudReply is the cloud's answer, as far as it must have come before any of
// it may be shown: a stream up to its first event, any other answer in full.
// Until then the local answer can still stand in.
type cloudReply struct {
	*uplink.Response
	guard  *upstream.Guard
	cancel context.CancelFunc
	span   trace.Span
	start  time.Time
	whole  openai.Body // nil for a stream
	events *sse.Reader // nil for a whole answer
	first  []byte      // the first event
}

func (r *cloudReply) close() {
	_ = r.Body.Close()
	r.guard.Stop()
	if r.cancel != nil {
		r.cancel()
	}
	r.span.End()
}

// asking is a request to the cloud under way.
type asking struct {
	kind   stream.Ask
	shown  int // tokens of the edge's answer that stay before the cloud's
	cancel context.CancelFunc
	came   chan struct{} // closed when there is a reply or an error

	// Set when came is closed.
	reply *cloudReply
	err   error
	sends int
	via   uplink.Via
	took  time.Duration
}

// ask lets the request over to the cloud and waits for the first sign of an
// answer. The error is an *openai.Error when the cloud answered with one.
func (s *Server) ask(ctx context.Context, c *call, why cascade.Reason) (*cloudReply, error) {
	a, err := s.startAsking(ctx, c, stream.AskRestart, why, nil, nil)
	if err != nil {
		return nil, err
	}
	return a.wait(c)
}

// startAsking lets the request over and does not wait. shown is the begun
// answer of stream.AskContinue. begun, which may be nil, is called when the
// answer has begun. Everything of c is read before startAsking returns.
func (s *Server) startAsking(ctx context.Context, c *call, kind stream.Ask, why cascade.Reason, shown []byte, begun func()) (*asking, error) {
	if c.opt.Privacy.Local() { // the plan never asks for it: this is the second lock
		return nil, errors.New("a local-only request must not leave this node")
	}
	if err := c.reserve(s.opt.Now()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &asking{kind: kind, cancel: cancel, came: make(chan struct{}), sends: 1}
	ctx, span := s.tracer.Start(ctx, "escalate "+string(why), trace.WithSpanKind(trace.SpanKindClient))
	firstByte := s.opt.FirstByte
	if !c.req.Stream {
		firstByte = wholeTimeout
	}
	ctx, guard := upstream.NewGuard(ctx, firstByte, s.opt.Stall)
	r := &cloudReply{guard: guard, span: span, start: s.opt.Now()}
	body := c.escalation(s, why)
	if kind != stream.AskRestart {
		a.shown = c.draft.Usage.CompletionTokens
	}
	if kind == stream.AskContinue {
		c.continueAfter(body, shown)
	}
	req, streamed := c.escalationRequest(ctx, body), c.req.Stream
	req.Once = c.edgeRuns+c.cloudSends+2 > maxAttempts
	c.cloudSends++
	go func() {
		defer close(a.came)
		if a.err = s.fetch(ctx, a, r, req, streamed); a.err == nil {
			a.reply = r
			if begun != nil {
				begun()
			}
			return
		}
		s.opt.Log.Warn("escalation failed", "operation", c.op, "via", a.via, "err", a.err)
	}()
	return a, nil
}

// errCut says that the connection broke after the answer's head and before what
// must have come of it: a stream's first event, or the whole.
var errCut = errors.New("the connection to the cloud broke")

// fetch sends req and waits for what must have come. A gateway that dies before
// that is asked no more: the same attempt is sent once more in all, to another
// one where there is one. Where the first had answered and billed it all the same,
// the attempt's id tells the ledger, and only one of the two is paid for.
func (s *Server) fetch(ctx context.Context, a *asking, r *cloudReply, req uplink.Request, streamed bool) error {
	err := s.send(ctx, a, r, req, streamed)
	if errors.Is(err, errCut) && a.sends == 1 && !req.Once && ctx.Err() == nil {
		_ = r.Body.Close()
		req.Once = true
		err = s.send(ctx, a, r, req, streamed)
		a.sends = 2
	}
	a.took = s.opt.Now().Sub(r.start)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, upstream.ErrFirstByte) || errors.Is(cause, upstream.ErrStall) {
		err = fmt.Errorf("%w: %w", errCloudSilent, cause)
	}
	r.span.RecordError(err)
	if r.Response != nil {
		_ = r.Body.Close()
	}
	r.guard.Stop()
	r.span.End()
	return err
}

// send sends req and reads what must have come of the answer.
func (s *Server) send(ctx context.Context, a *asking, r *cloudReply, req uplink.Request, streamed bool) error {
	resp, err := s.opt.Cloud.Do(ctx, req)
	if err != nil {
		return err
	}
	r.Response, a.via, a.sends = resp, resp.Via, resp.Attempts
	return r.begin(streamed)
}

// wait returns what came of the request, and tells c what it took.
func (a *asking) wait(c *call) (*cloudReply, error) {
	<-a.came
	c.cloudSends += a.sends - 1
	c.cloudTime += a.took
	c.via = a.via
	if a.reply != nil {
		a.reply.cancel = a.cancel
		return a.reply, nil
	}
	a.cancel()
	return nil, a.err
}

// drop ends a request whose answer nobody needs.
func (a *asking) drop() {
	a.cancel()
	<-a.came
	if a.reply != nil {
		a.reply.close()
	}
}

// begin checks the status and reads what must have come.
func (r *cloudReply) begin(stream bool) error {
	r.guard.Progress()
	if r.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20)) // a cut body still has its status
		e := openai.ParseError(r.StatusCode, body)
		e.NoRetry = r.Header.Get("X-Should-Retry") == "false"
		if ms, err := strconv.ParseInt(r.Header.Get("Retry-After-Ms"), 10, 64); err == nil && ms > 0 {
			e.RetryAfter = time.Duration(ms) * time.Millisecond
		}
		return &refusedError{e, r.passed()}
	}
	if !stream {
		return r.readWhole()
	}
	r.events = sse.NewReader(r.Body)
	first, err := r.events.Next()
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %w", errCloudSilent, err)
	case err != nil:
		return fmt.Errorf("%w: %w: %w", errCloudSilent, errCut, err)
	}
	if e := errorEvent(first); e != nil {
		return e
	}
	r.guard.Progress()
	r.first = append([]byte(nil), first...)
	return nil
}

func (r *cloudReply) readWhole() error {
	raw, err := io.ReadAll(io.LimitReader(&progress{r.Body, r.guard}, maxReply+1))
	if err != nil {
		return fmt.Errorf("%w: %w: %w", errCloudSilent, errCut, err)
	}
	if len(raw) > maxReply {
		return fmt.Errorf("%w: it is longer than %d bytes", errCloudSilent, maxReply)
	}
	if r.whole, err = openai.ParseBody(raw); err != nil {
		return fmt.Errorf("%w: it is not a JSON object", errCloudSilent)
	}
	return nil
}

// progress tells a guard of each read.
type progress struct {
	r io.Reader
	g *upstream.Guard
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if n > 0 {
		p.g.Progress()
	}
	return n, err
}

// escalation is the body for the cloud: the client's with the draft and the
// options that are the cloud's to keep.
func (c *call) escalation(s *Server, why cascade.Reason) openai.Body {
	body := c.body.Clone()
	body.Set("weir", c.weirMember(s.opt.Now(), why))
	body.Set("model", c.escalationModel(s))
	return body
}

// escalationModel is the model to ask the cloud for: the edge's own name means
// nothing there.
func (c *call) escalationModel(s *Server) string {
	if c.req.Model == s.opt.Model {
		return ModelAuto
	}
	return c.req.Model
}

func (c *call) escalationRequest(ctx context.Context, body openai.Body) uplink.Request {
	h := http.Header{
		"Content-Type":           {"application/json"},
		contract.HeaderOperation: {c.op},
		contract.HeaderAttempt:   {contract.NewID()},
	}
	if c.KeyID != "" {
		h.Set(contract.HeaderKeyID, c.KeyID)
	}
	telemetry.Inject(ctx, h)
	return uplink.Request{Method: http.MethodPost, Path: c.kind.Path(), Header: h, Body: body.JSON()}
}

// weirMember is the weir object of an escalation. Modes and privacy have done
// their work here and are not sent.
func (c *call) weirMember(now time.Time, why cascade.Reason) map[string]any {
	draft := contract.Draft{Reason: why, Confidence: c.result.Confidence}
	if c.draft != nil && len(c.draft.Text) <= contract.MaxDraftBytes {
		draft.Text = c.draft.Text
	}
	m := map[string]any{"draft": draft}
	if c.opt.SLO != "" {
		m["slo"] = c.opt.SLO
	}
	if c.opt.Session != "" {
		m["session"] = c.opt.Session
	}
	if c.opt.CostCapped {
		m["max_cost_usd"] = contract.USD(c.opt.MaxCost)
	}
	if left := c.remaining(now); left > 0 {
		m["deadline_ms"] = max(1, left.Milliseconds())
	}
	return m
}

// merge completes the result from the cloud's own weir object, which may be
// absent.
func (s *Server) merge(c *call, raw json.RawMessage, model string, reason cascade.Reason) {
	var theirs contract.Result
	if len(raw) > 0 && json.Unmarshal(raw, &theirs) != nil {
		theirs = contract.Result{}
	}
	c.result.Tier, c.result.Reason = cascade.TierCloud, reason
	if c.result.Model = theirs.Model; theirs.Model == "" {
		c.result.Model = model
	}
	c.result.CloudTokens = theirs.CloudTokens
	c.result.QueueMs = theirs.QueueMs
	c.result.CostUSD = s.edgeCost(c) + theirs.CostUSD
	c.result.Attempts = c.edgeRuns + c.cloudSends - 1 + max(1, theirs.Attempts)
}
