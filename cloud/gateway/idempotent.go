package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// Claim is a request's hold on its Idempotency-Key.
type Claim struct {
	TenantID, KeyID, Key string
	Body                 [sha256.Size]byte
	Node                 string // this process
	Life                 time.Duration
}

// Claimed is how a claim went. SameBody is about the request that holds it.
type Claimed struct{ Mine, SameBody bool }

// Claims keeps claims for all gateways. When it fails, a gateway goes on with
// its own memory alone.
type Claims interface {
	Claim(ctx context.Context, c Claim) (Claimed, error)
	DropClaim(ctx context.Context, c Claim) error
}

// Bounds of what is kept for replays. An answer that does not fit is not kept,
// and its claim is dropped.
const (
	replayLife  = 10 * time.Minute
	replayMost  = 1 << 20  // bytes of one answer
	replayTotal = 64 << 20 // bytes of all
	claimTime   = 2 * time.Second
)

// replays are the answers of this process's idempotent requests: claimed while
// under way, kept for replayLife when they went well. Answers live in memory
// only, because they are the tenants' content.
type replays struct {
	mu    sync.Mutex
	byKey map[replayKey]*replay
	order []*replay // oldest first
	size  int
}

type replayKey struct{ tenant, device, keyID, key string }

type replay struct {
	id      replayKey
	body    [sha256.Size]byte
	done    bool
	until   time.Time
	status  int
	header  http.Header
	content []byte
}

// take claims the key for a new request, or returns the request that has it.
func (r *replays) take(id replayKey, body [sha256.Size]byte, now time.Time) (held *replay) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweepLocked(now)
	if held = r.byKey[id]; held != nil {
		return held
	}
	if r.byKey == nil {
		r.byKey = map[replayKey]*replay{}
	}
	r.byKey[id] = &replay{id: id, body: body}
	return nil
}

// sweepLocked forgets what has expired, and the oldest answers beyond the
// bound.
func (r *replays) sweepLocked(now time.Time) {
	for len(r.order) > 0 && (now.After(r.order[0].until) || r.size > replayTotal) {
		old := r.order[0]
		r.order = r.order[1:]
		r.size -= len(old.content)
		delete(r.byKey, old.id)
	}
}

// finish keeps the answer.
func (r *replays) finish(id replayKey, status int, header http.Header, content []byte, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &replay{id: id, body: r.byKey[id].body, done: true, until: now.Add(replayLife), status: status, header: header, content: content}
	r.byKey[id] = p
	r.order = append(r.order, p)
	r.size += len(content)
}

func (r *replays) drop(id replayKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byKey, id)
}

// once makes a request with an Idempotency-Key run once: the same request
// again gets the same answer, or is told to come back.
func (g *Gateway) once(c *gin.Context) {
	x := of(c)
	if x.ask.opts.IdempotencyKey == "" {
		return
	}
	id := replayKey{x.who.TenantID, x.who.Device, x.who.KeyID, x.ask.opts.IdempotencyKey}
	if x.who.KeyID != "" {
		id.device = "" // the key is the caller, whatever way it takes
	}
	if held := g.replays.take(id, x.ask.hash, time.Now()); held != nil {
		x.again(held)
		return
	}
	claim := Claim{TenantID: id.tenant, KeyID: id.keyID, Key: id.key, Body: x.ask.hash, Node: g.opts.Epoch, Life: replayLife}
	kept := false
	defer func() {
		if !kept {
			g.replays.drop(id)
		}
	}()
	if !x.claimEverywhere(claim) {
		return
	}
	rec := &recorder{ResponseWriter: c.Writer}
	c.Writer = rec
	c.Next()
	if x.outcome == tenants.OutcomeOK && !rec.tooLong {
		g.replays.finish(id, rec.Status(), rec.Header().Clone(), rec.content.Bytes(), time.Now())
		kept = true
		return
	}
	x.dropClaim(claim)
}

// again answers a request whose key another one has.
func (x *exchange) again(held *replay) {
	switch {
	case held.body != x.ask.hash:
		x.refuse(keyReused())
	case !held.done:
		x.refuse(keyBusy())
	default:
		x.gin.Abort()
		x.wrote = true
		h := x.gin.Writer.Header()
		for name, values := range held.header {
			h[name] = values
		}
		x.gin.Writer.WriteHeader(held.status)
		_, _ = x.gin.Writer.Write(held.content) // the client may be gone
	}
}

// claimEverywhere claims the key among all gateways. It returns false when the
// request was refused. Keyless requests of a device are known to one gateway
// at a time and are not claimed.
func (x *exchange) claimEverywhere(claim Claim) bool {
	if x.g.opts.Claims == nil || claim.KeyID == "" {
		return true
	}
	ctx, cancel := context.WithTimeout(x.ctx, claimTime)
	defer cancel()
	got, err := x.g.opts.Claims.Claim(ctx, claim)
	switch {
	case err != nil:
		x.remark = "the Idempotency-Key holds on this gateway alone: the database is away"
	case !got.SameBody:
		x.refuse(keyReused())
		return false
	case !got.Mine:
		x.refuse(keyBusy())
		return false
	}
	return true
}

func (x *exchange) dropClaim(claim Claim) {
	if x.g.opts.Claims == nil || claim.KeyID == "" || x.remark != "" {
		return
	}
	// The client may be gone; the claim must go all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), claimTime)
	defer cancel()
	if err := x.g.opts.Claims.DropClaim(ctx, claim); err != nil {
		x.g.opts.Log.Warn("idempotency claim stays until it expires", "operation", x.op, "error", err)
	}
}

func keyReused() *openai.Error {
	return &openai.Error{Status: http.StatusUnprocessableEntity, Type: openai.TypeInvalidRequest, Code: "idempotency_key_reused", NoRetry: true,
		Param: contract.HeaderIdempotency, Message: "this Idempotency-Key was used with another request: use a new one for each request"}
}

func keyBusy() *openai.Error {
	return &openai.Error{Status: http.StatusConflict, Type: openai.TypeInvalidRequest, Code: "idempotency_key_in_use", RetryAfter: time.Second,
		Param: contract.HeaderIdempotency, Message: "the request with this Idempotency-Key is under way, or its answer is held by another gateway"}
}

// recorder keeps a copy of an answer on its way out.
type recorder struct {
	gin.ResponseWriter
	content bytes.Buffer
	tooLong bool
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.tooLong = r.tooLong || r.content.Len()+len(b) > replayMost; !r.tooLong {
		r.content.Write(b)
	}
	return r.ResponseWriter.Write(b)
}

// WriteString implements io.StringWriter.
func (r *recorder) WriteString(s string) (int, error) { return r.Write([]byte(s)) }

// Unwrap gives http.ResponseController the connection's own writer.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
