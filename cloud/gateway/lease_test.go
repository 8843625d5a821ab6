package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/contract"
)

// leaser is a prefill instance that tells its state, as Weir's worker does, and
// keeps its hand-offs for who renews them.
type leaser struct {
	*instanceFake
	mu       sync.Mutex
	status   int // of the answers to renewals
	renewed  int
	released []string // handles
	foreign  int      // calls without the operation of the prefill leg
}

func newLeaser(t testing.TB) *leaser {
	l := &leaser{instanceFake: &instanceFake{name: "p", role: "prefill", model: "big"}, status: http.StatusOK}
	mux := http.NewServeMux()
	mux.Handle("/", l.instanceFake)
	mux.HandleFunc("GET /instance/v1/state", l.tellState)
	mux.HandleFunc("POST "+leasePath, l.lease)
	l.Server = httptest.NewServer(mux)
	t.Cleanup(func() { l.CloseClientConnections(); l.Close() })
	return l
}

func (l *leaser) tellState(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, `{"full":true,"seq":1,"name":"p","epoch":"e-p","role":"prefill","health":"ok","model":"big","requests":[]}`)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func (l *leaser) lease(w http.ResponseWriter, r *http.Request) {
	var o struct{ Handle, Operation, Action string }
	_ = json.NewDecoder(r.Body).Decode(&o)
	_, head := l.last()
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.Operation != head.Get(contract.HeaderOperation) {
		l.foreign++
	}
	if o.Action == "release" {
		l.released = append(l.released, o.Handle)
		return
	}
	l.renewed++
	w.WriteHeader(l.status)
}

func (l *leaser) seen() (renewed, released int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewed, len(l.released)
}

// leased is a gateway before l and two decode instances, which knows that l has
// leases.
func leased(t testing.TB, l *leaser, life time.Duration, d ...*instanceFake) *rig {
	r := newRig(t, func(o *Options) {
		o.Policy = preferring("d1")
		o.Timeouts.Lease = life
	}, append(d, l.instanceFake)...)
	await(t, "the state of p", func() bool {
		for _, s := range r.opts.Pool.Status() {
			if s.Name == "p" {
				return s.Report != nil
			}
		}
		return false
	})
	return r
}

// TestLeaseIsKept: a decode leg that waits for longer than a hand-off lives, and
// is then refused, leaves a hand-off that the next one reads. It is released once
// the answer runs.
func TestLeaseIsKept(t *testing.T) {
	l, d1, d2 := newLeaser(t), newInstance(t, "d1", "decode"), newInstance(t, "d2", "decode")
	r := leased(t, l, 4*time.Second, d1, d2)
	d1.on(func(w http.ResponseWriter, _ *http.Request, _ map[string]any) bool {
		await(t, "renewals", func() bool { n, _ := l.seen(); return n > 3 })
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	if got := r.chat(t, ask1); got.status != 200 {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	body, _ := d2.last()
	if n := l.prefills.Load(); n != 1 || body["kv_transfer_params"].(map[string]any)["remote_request_id"] != "h1" {
		t.Errorf("%d prefills, then asked with %v", n, body["kv_transfer_params"])
	}
	await(t, "the release", func() bool { _, n := l.seen(); return n == 1 })
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.foreign > 0 || l.released[0] != "h1" {
		t.Errorf("%d calls for another operation, released %v", l.foreign, l.released)
	}
}

// TestPullThatBreaksOff: a decode instance that dies may have read the hand-off
// or not: the instance that has it knows.
func TestPullThatBreaksOff(t *testing.T) {
	for status, prefills := range map[int]int64{http.StatusOK: 1, http.StatusNotFound: 2, http.StatusBadGateway: 2} {
		l, d1, d2 := newLeaser(t), newInstance(t, "d1", "decode"), newInstance(t, "d2", "decode")
		l.status = status
		r := leased(t, l, time.Minute, d1, d2)
		d1.on(dies)
		if got := r.chat(t, ask1); got.status != 200 {
			t.Fatalf("answer %d %s", got.status, got.body)
		}
		if n := l.prefills.Load(); n != prefills {
			t.Errorf("lease says %d: %d prefills, want %d", status, n, prefills)
		}
	}
}

// TestPulled: a hand-off that was read is not asked about again.
func TestPulled(t *testing.T) {
	l, d := newLeaser(t), newInstance(t, "d1", "decode")
	r := leased(t, l, time.Minute, d)
	d.on(func(w http.ResponseWriter, _ *http.Request, _ map[string]any) bool {
		w.Header().Set(contract.HeaderKV, contract.KVPulled)
		return false
	})
	for range 5 {
		if got := r.chat(t, ask1s); got.status != 200 {
			t.Fatalf("answer %d %s", got.status, got.body)
		}
	}
	if renewed, released := l.seen(); renewed+released != 0 {
		t.Errorf("%d renewals, %d releases", renewed, released)
	}
}

// TestClientLeavesBeforeThePull: nobody will read the hand-off: it is released.
func TestClientLeavesBeforeThePull(t *testing.T) {
	l, d := newLeaser(t), newInstance(t, "d1", "decode")
	r := leased(t, l, time.Minute, d)
	d.on(d.hangsAfter(0))
	leave := r.visit(t, ask1)
	await(t, "the decode leg", func() bool { body, _ := d.last(); return body != nil })
	leave()
	await(t, "the release", func() bool { _, n := l.seen(); return n == 1 })
}
