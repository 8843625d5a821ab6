package local_test

import (
	"testing"

	"github.com/weirhq/weir/edge/internal/workertest"
)

func TestIdempotencyKey(t *testing.T) {
	n := startNode(t, nil)
	n.worker.Set(unsure)
	for _, stream := range []string{"", `,"stream":true`} {
		n.t = t
		key := "k" + stream
		before := len(n.cloud.Seen())
		first := n.chat(stream, "Idempotency-Key", key)
		again := n.chat(stream, "Idempotency-Key", key)
		if len(n.cloud.Seen()) != before+1 {
			t.Errorf("%q: the cloud was asked twice", stream)
		}
		if again.text != first.text || again.done != first.done || again.weir.Reason != first.weir.Reason || again.header.Get("X-Request-Id") != first.header.Get("X-Request-Id") {
			t.Errorf("%q: first %+v then %+v", stream, first, again)
		}
		if other := n.chat(stream+`,"seed":2`, "Idempotency-Key", key); other.status != 422 || other.errAt != "Idempotency-Key" {
			t.Errorf("another request under the same key: %d %s", other.status, other.errCode)
		}
	}
	if rows := len(n.rows.all()); rows != 2 {
		t.Errorf("%d usage rows for two requests", rows)
	}
}

// What is local-only is not kept, and what failed may be tried again.
func TestIdempotencyKeyKeepsNoSecretsAndNoFailures(t *testing.T) {
	n := startNode(t, nil)
	n.chat("", "Idempotency-Key", "p", "X-Weir-Privacy", "local-only")
	n.chat("", "Idempotency-Key", "p", "X-Weir-Privacy", "local-only")
	if asked := len(n.worker.Seen()); asked != 2 {
		t.Errorf("a local-only answer was kept: the worker was asked %d times", asked)
	}
	n.worker.Set(workertest.Reply{Status: 500})
	if a := n.chat("", "Idempotency-Key", "f", "X-Weir-Mode", "edge-only"); a.status != 503 {
		t.Errorf("status %d", a.status)
	}
	n.worker.Set(confident)
	eventually(t, "worker ready again", func() bool { return n.chat("", "Idempotency-Key", "f", "X-Weir-Mode", "edge-only").status == 200 })
}

func TestIdempotencyKeyUnderWay(t *testing.T) {
	n := startNode(t, nil)
	gate := make(chan struct{})
	n.worker.Set(workertest.Reply{Text: "x", Logprob: -.001, Gate: gate})
	got := make(chan answer, 1)
	go func() {
		defer close(got)
		got <- n.chat("", "Idempotency-Key", "u")
	}()
	eventually(t, "first request at the worker", func() bool { return len(n.worker.Seen()) == 1 })
	if a := n.chat("", "Idempotency-Key", "u"); a.status != 409 || a.header.Get("Retry-After") == "" {
		t.Errorf("status %d", a.status)
	}
	close(gate)
	if a := take(t, "the first answer", got); a.status != 200 {
		t.Errorf("first request: %d", a.status)
	}
	if a := n.chat("", "Idempotency-Key", "u"); a.status != 200 || len(n.worker.Seen()) != 1 {
		t.Errorf("after it: %d, worker asked %d times", a.status, len(n.worker.Seen()))
	}
}
