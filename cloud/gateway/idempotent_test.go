package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/contract"
)

func TestIdempotency(t *testing.T) {
	for _, body := range []string{ask1, ask1s} {
		d := newInstance(t, "d", "mixed")
		r := newRig(t, nil, d)
		first := r.chat(t, body, contract.HeaderIdempotency, "k1")
		again := r.chat(t, body, contract.HeaderIdempotency, "k1")
		if first.status != 200 || again.body != first.body || again.header.Get(contract.HeaderRequestID) != first.header.Get(contract.HeaderRequestID) ||
			again.header.Get("Content-Type") != first.header.Get("Content-Type") {
			t.Errorf("first %d %s\nagain %d %s", first.status, first.body, again.status, again.body)
		}
		if n := d.decodes.Load(); n != 1 || len(r.ledger(t)) != 1 {
			t.Errorf("the model ran %d times, %d ledger rows", n, len(r.ledger(t)))
		}
		if got := r.chat(t, strings.Replace(body, "light", "door", 1), contract.HeaderIdempotency, "k1"); got.status != 422 || errorOf(t, got.body)["param"] != contract.HeaderIdempotency {
			t.Errorf("another body: %d %s", got.status, got.body)
		}
		if got := r.chat(t, body, contract.HeaderIdempotency, "k2"); got.status != 200 || got.body == first.body {
			t.Errorf("another key: %d %s", got.status, got.body)
		}
		if got := r.do(t, http.MethodPost, "/v1/chat/completions", r.other, body, contract.HeaderIdempotency, "k1"); got.status != 200 ||
			got.header.Get(contract.HeaderRequestID) == first.header.Get(contract.HeaderRequestID) {
			t.Errorf("another tenant got the first one's answer: %d %s", got.status, got.body)
		}
	}
}

func TestIdempotentFailureMayBeRetried(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	r := newRig(t, nil, d)
	d.on(says(500, ""))
	if got := r.chat(t, ask1, contract.HeaderIdempotency, "k"); got.status != 502 {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	d.on(nil)
	if got := r.chat(t, ask1, contract.HeaderIdempotency, "k"); got.status != 200 {
		t.Errorf("the retry got %d %s", got.status, got.body)
	}
}

func TestIdempotentUnderWay(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	r := newRig(t, nil, d)
	reached, leave := d.holds(t)
	done := r.later(t, ask1, contract.HeaderIdempotency, "k")
	take(t, "the request at the instance", reached)
	if got := r.chat(t, ask1, contract.HeaderIdempotency, "k"); got.status != 409 || got.header.Get("Retry-After") == "" {
		t.Errorf("while the first is under way: %d %s", got.status, got.body)
	}
	leave()
	if got := take(t, "the first answer", done); got.status != 200 {
		t.Errorf("the first got %d %s", got.status, got.body)
	}
}

// claimsFake is the claims of two gateways on one database.
type claimsFake struct {
	mu   sync.Mutex
	held map[string]Claim
	err  error
}

func (c *claimsFake) Claim(_ context.Context, n Claim) (Claimed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return Claimed{}, c.err
	}
	id := n.TenantID + n.KeyID + n.Key
	if old, ok := c.held[id]; ok {
		return Claimed{SameBody: old.Body == n.Body}, nil
	}
	c.held[id] = n
	return Claimed{Mine: true, SameBody: true}, nil
}

func (c *claimsFake) DropClaim(_ context.Context, n Claim) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, n.TenantID+n.KeyID+n.Key)
	return nil
}

func TestIdempotencyAcrossGateways(t *testing.T) {
	claims := &claimsFake{held: map[string]Claim{}}
	share := func(o *Options) { o.Claims = claims }
	d := newInstance(t, "d", "mixed")
	a := newRig(t, share, d)
	d.on(says(500, ""))
	a.chat(t, ask1, contract.HeaderIdempotency, "k")
	if len(claims.held) != 0 {
		t.Error("a failed request kept its claim")
	}
	d.on(nil)
	a.chat(t, ask1, contract.HeaderIdempotency, "k")
	if len(claims.held) != 1 {
		t.Fatalf("claims %v", claims.held)
	}
	// A second process of the same gateway has no memory of the answer.
	a.replays = replays{}
	if got := a.chat(t, ask1, contract.HeaderIdempotency, "k"); got.status != 409 {
		t.Errorf("elsewhere: %d %s", got.status, got.body)
	}
	if got := a.chat(t, ask1s, contract.HeaderIdempotency, "k"); got.status != 422 {
		t.Errorf("elsewhere with another body: %d %s", got.status, got.body)
	}
	claims.err = errors.New("database away")
	got := a.chat(t, ask1, contract.HeaderIdempotency, "k")
	if got.status != 200 {
		t.Fatalf("without a database: %d %s", got.status, got.body)
	}
	e := a.do(t, http.MethodGet, "/v1/weir/requests/"+got.header.Get(contract.HeaderRequestID), a.key, "")
	if !strings.Contains(e.body, "this gateway alone") {
		t.Errorf("explanation %s", e.body)
	}
}

func TestReplaysForget(t *testing.T) {
	var r replays
	now := time.Now()
	id := func(k string) replayKey { return replayKey{key: k} }
	put := func(k string, n int, at time.Time) {
		if r.take(id(k), [32]byte{}, at) != nil {
			t.Fatalf("%s is held", k)
		}
		r.finish(id(k), 200, nil, make([]byte, n), at)
	}
	put("a", 10, now)
	put("b", replayTotal, now.Add(time.Second))
	if r.take(id("b"), [32]byte{}, now.Add(2*time.Second)) == nil || r.byKey[id("a")] != nil || r.size != replayTotal {
		t.Errorf("beyond the bound: size %d, %d answers", r.size, len(r.byKey))
	}
	if r.take(id("c"), [32]byte{}, now.Add(2*replayLife)) != nil || len(r.order) != 0 || r.size != 0 {
		t.Errorf("after its life: size %d, %d answers", r.size, len(r.order))
	}
}
