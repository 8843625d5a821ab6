package gateway

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// exchange is one request from its arrival to its one end.
type exchange struct {
	g     *Gateway
	gin   *gin.Context
	began time.Time
	op    string // operation id, the answer's X-Request-Id
	// attempt is what a device calls this try of its operation; nil where it does
	// not.
	attempt uuid.UUID
	label   string // the client's own X-Request-Id, for the log
	proto   string

	who  caller
	ask  ask
	ctx  context.Context // ends with the client, the deadline or the answer
	span trace.Span

	choice   *choice   // nil where the model has no equal pools
	admitted *admitted // nil until admit let it pass
	result   contract.Result
	story    *explanation

	queue, ttft time.Duration
	remark      string // for the explanation
	outcome     tenants.Outcome
	failure     *openai.Error // what the client was told, if anything went wrong
	wrote       bool          // the answer's head has left
	ended       bool
}

const exchangeKey = "weir.exchange"

func of(c *gin.Context) *exchange { return c.MustGet(exchangeKey).(*exchange) }

// begin mints the operation and sets what every answer carries.
func (g *Gateway) begin(c *gin.Context) {
	x := &exchange{g: g, gin: c, began: time.Now(), op: contract.NewID(), ctx: c.Request.Context(),
		label: clientLabel(c.Request), proto: c.Request.Proto}
	c.Set(exchangeKey, x)
	openai.BoundBody(c.Writer, c.Request, g.opts.Timeouts.Body)
	h := c.Writer.Header()
	h.Set(contract.HeaderRequestID, x.op)
	if c.Request.Header.Get("Origin") != "" {
		contract.ExposeHeaders(h)
	}
	if g.opts.AltSvc != nil && c.Request.TLS != nil && c.Request.ProtoMajor < 3 {
		_ = g.opts.AltSvc(h) // without it clients merely stay on TCP
	}
	defer x.log()
	c.Next()
}

// remoteTrace holds a device's trace context; that of applications is not
// taken over, because its sampling flag would spend the operator's storage.
func (x *exchange) remoteTrace() http.Header {
	if x.who.Device == "" {
		return nil
	}
	return x.gin.Request.Header
}

// clientLabel is the client's own X-Request-Id when it is fit for a log line.
func clientLabel(r *http.Request) string {
	s := r.Header.Get(contract.HeaderRequestID)
	if len(s) > contract.MaxNameBytes || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ""
	}
	return s
}

// recoverPanics turns a panic into a 500 that the log explains once. Where the
// head has left already, the connection is cut so that the client does not
// take half an answer for a whole.
func (g *Gateway) recoverPanics(c *gin.Context) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if p == http.ErrAbortHandler {
			panic(p)
		}
		x := of(c)
		g.opts.Log.Error("panic in a handler", "operation", x.op, "path", c.FullPath(), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		if c.Writer.Written() {
			panic(http.ErrAbortHandler)
		}
		x.refuse(openai.Internal(nil))
	}()
	c.Next()
}

// boundInFlight keeps the process inside its memory: beyond the bound a
// request costs a refusal and nothing else.
func (g *Gateway) boundInFlight(c *gin.Context) {
	defer g.inFlight.Add(-1)
	if g.inFlight.Add(1) > int64(g.opts.MaxInFlight) {
		of(c).refuse(openai.Unavailable("overloaded", time.Second, "the gateway has %d requests under way: try again shortly", g.opts.MaxInFlight))
		return
	}
	c.Next()
}

// refuse answers with an error, unless an answer has begun, and stops the
// handler chain.
func (x *exchange) refuse(err *openai.Error) {
	x.gin.Abort()
	x.failure = err
	if x.wrote {
		return
	}
	x.wrote = true
	h := x.gin.Writer.Header()
	x.setTimes()
	x.result.WriteHeaders(h)
	if x.admitted != nil {
		x.admitted.grant.SetHeaders(h)
	}
	x.timing().Write(h)
	if err.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="weir"`)
	}
	err.Write(x.gin.Writer, &x.result)
}

// refuseFor is refuse with a reason code.
func (x *exchange) refuseFor(reason cascade.Reason, err *openai.Error) {
	x.result.Reason = reason
	x.refuse(err)
}

func (x *exchange) setTimes() {
	x.result.QueueMs = millis(x.queue)
	x.result.TTFTMs = millis(x.ttft)
}

func (x *exchange) timing() *contract.Timing {
	var t contract.Timing
	t.Add("queue", x.queue)
	if x.admitted != nil && x.admitted.prefill > 0 {
		t.Add("prefill", x.admitted.prefill)
	}
	if x.ttft > 0 {
		t.Add("ttft", x.ttft)
	}
	t.Add("total", time.Since(x.began))
	return &t
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
