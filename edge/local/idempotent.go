package local

import (
	"bytes"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// Bounds of what is kept for replays: an answer that does not fit is not kept.
const (
	replayLife  = 10 * time.Minute
	replayMost  = 1 << 20  // bytes of one answer
	replayTotal = 16 << 20 // bytes of all
)

// replays are the answers to requests with an Idempotency-Key: claimed while
// under way, kept for replayLife when they went well. They are this node's
// own, in memory only, because they are the users' content.
type replays struct {
	mu    sync.Mutex
	byKey map[replayKey]*replay
	order []*replay // kept ones, oldest first
	size  int
}

type replayKey struct{ keyID, key string }

type replay struct {
	id      replayKey
	hash    [sha256.Size]byte
	done    bool
	until   time.Time
	header  http.Header
	content []byte
}

// take claims the key for a new request, or returns the request that has it.
func (r *replays) take(id replayKey, hash [sha256.Size]byte, now time.Time) (held *replay) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.order) > 0 && (now.After(r.order[0].until) || r.size > replayTotal) {
		old := r.order[0]
		r.order = r.order[1:]
		r.size -= len(old.content)
		delete(r.byKey, old.id)
	}
	if held = r.byKey[id]; held != nil {
		return held
	}
	if r.byKey == nil {
		r.byKey = map[replayKey]*replay{}
	}
	r.byKey[id] = &replay{id: id, hash: hash}
	return nil
}

// end keeps the claim's answer, or drops the claim when rec is nil or too long.
func (r *replays) end(id replayKey, rec *recorder, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	claim := r.byKey[id]
	if rec == nil || rec.tooLong {
		delete(r.byKey, id)
		return
	}
	// A reader may hold the claim: it is replaced, not changed.
	kept := &replay{id: id, hash: claim.hash, done: true, until: now.Add(replayLife), header: rec.Header().Clone(), content: rec.content.Bytes()}
	r.byKey[id] = kept
	r.order = append(r.order, kept)
	r.size += len(kept.content)
}

// once runs a request with an Idempotency-Key at most once: the same request
// again gets the same answer, or is told to come back. An answer to a
// local-only request is never kept.
func (s *Server) once(c *call, out *output, run func() error) error {
	if c.opt.IdempotencyKey == "" {
		return run()
	}
	id := replayKey{c.KeyID, c.opt.IdempotencyKey}
	hash := sha256.Sum256(append([]byte(c.kind.Path()+"\n"), c.body.JSON()...))
	if held := s.replays.take(id, hash, s.opt.Now()); held != nil {
		c.outcome = tenants.OutcomeRejected
		switch {
		case held.hash != hash:
			return &openai.Error{Status: http.StatusUnprocessableEntity, Type: openai.TypeInvalidRequest, Code: "idempotency_key_reused", NoRetry: true,
				Param: contract.HeaderIdempotency, Message: "this Idempotency-Key was used with another request: use a new one for each request"}
		case !held.done:
			return &openai.Error{Status: http.StatusConflict, Type: openai.TypeInvalidRequest, Code: "idempotency_key_in_use", RetryAfter: time.Second,
				Param: contract.HeaderIdempotency, Message: "the request with this Idempotency-Key is under way"}
		}
		c.outcome, c.replayed = tenants.OutcomeOK, true
		return out.again(held)
	}
	rec := &recorder{ResponseWriter: out.w}
	out.w = rec
	var keep *recorder
	defer func() { s.replays.end(id, keep, s.opt.Now()) }()
	err := run()
	if err == nil && c.outcome == tenants.OutcomeOK && !c.opt.Privacy.Local() {
		keep = rec
	}
	return err
}

// again sends a kept answer.
func (o *output) again(held *replay) error {
	h := o.w.Header()
	for name, values := range held.header {
		h[name] = values
	}
	o.w.WriteHeader(http.StatusOK)
	_, _ = o.w.Write(held.content) // the client may be gone
	return nil
}

// recorder keeps a copy of an answer on its way out.
type recorder struct {
	http.ResponseWriter
	content bytes.Buffer
	tooLong bool
}

// Unwrap lets http.ResponseController flush.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) Write(b []byte) (int, error) {
	if r.tooLong = r.tooLong || r.content.Len()+len(b) > replayMost; !r.tooLong {
		r.content.Write(b)
	}
	return r.ResponseWriter.Write(b)
}
