package admit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// slots is a Pool with a number of slots that a test moves.
type slots struct{ n atomic.Int64 }

func (s *slots) Slots(string) int          { return int(s.n.Load()) }
func (s *slots) Serves(string) (bool, int) { return true, 1000 }

type directory struct{ index *tenants.Index }

func (d directory) Index() *tenants.Index { return d.index }

// rig is an Admitter over a snapshot.
type rig struct {
	*Admitter
	pool *slots
	snap *tenants.Snapshot
}

func newRig(t *testing.T, adjust func(*tenants.Snapshot)) *rig {
	t.Helper()
	snap := &tenants.Snapshot{Version: 1,
		Tenants: []tenants.Tenant{{ID: "a", State: tenants.Active, Strict: true}, {ID: "b", State: tenants.Active}},
		Keys:    []tenants.KeyInfo{{ID: "keya", TenantID: "a", State: tenants.Active}, {ID: "keyb", TenantID: "b", State: tenants.Active}},
		Classes: []tenants.Class{
			{Name: "interactive", Band: 0, MaxQueueMillis: 5000}, {Name: "hasty", Band: 0, MaxQueueMillis: 1},
			{Name: "standard", Band: 1, MaxQueueMillis: 15_000}, {Name: "batch", Band: 2, Sheddable: true, MaxQueueMillis: 60_000}},
		Prices: []tenants.Price{{Version: 1, Tier: tenants.Cloud, Model: "*", Input: 1_000_000, Output: 1_000_000}}}
	if adjust != nil {
		adjust(snap)
	}
	index, err := tenants.NewIndex(snap)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{pool: &slots{}, snap: snap}
	r.Admitter, err = New(Options{Directory: directory{index}, Pool: r.pool, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *rig) work(tenant, class string) gateway.Work {
	id := tenants.Identity{TenantID: tenant, KeyID: "key" + tenant}
	for i := range r.snap.Tenants {
		if r.snap.Tenants[i].ID == tenant {
			id.Tenant = &r.snap.Tenants[i]
		}
	}
	return gateway.Work{Operation: contract.NewID(), Identity: id, Model: "m", Pool: "m", Class: class, PromptBytes: 36, MaxTokens: 100, Choices: 1, Arrived: time.Now()}
}

func (r *rig) admit(t *testing.T, w gateway.Work) gateway.Grant {
	t.Helper()
	g, err := r.Admit(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// used is the row of an attempt that ended well.
func used(input, output int64) tenants.UsageRecord {
	return tenants.UsageRecord{AttemptID: contract.NewID(), Outcome: tenants.OutcomeOK, InputTokens: input, OutputTokens: output, CostNanoUSD: (input + output) * 1000}
}

func refusalOf(t *testing.T, err error) *gateway.Refused {
	t.Helper()
	var r *gateway.Refused
	if !errors.As(err, &r) {
		t.Fatalf("error %v: want a *gateway.Refused", err)
	}
	return r
}

func limitOn(kind tenants.LimitKind, window tenants.LimitWindow, limit int64) func(*tenants.Snapshot) {
	return func(s *tenants.Snapshot) {
		s.Limits = append(s.Limits, tenants.Limit{ID: "l", TenantID: "a", Kind: kind, Window: window, Limit: limit})
	}
}

// TestHeaders: answers and refusals carry limit, remaining and reset, and
// Retry-After is the time at which the request fits (requirements 11, 12).
func TestHeaders(t *testing.T) {
	r := newRig(t, func(s *tenants.Snapshot) {
		s.Limits = []tenants.Limit{{ID: "rpm", TenantID: "a", Kind: tenants.LimitRequests, Window: tenants.PerMinute, Limit: 6, Burst: 2},
			{ID: "tpd", TenantID: "a", Kind: tenants.LimitTotal, Window: tenants.PerDay, Limit: 100_000}}
	})
	h := http.Header{}
	g := r.admit(t, r.work("a", ""))
	g.SetHeaders(h)
	if h.Get("X-RateLimit-Limit-Requests") != "6" || h.Get("X-RateLimit-Remaining-Requests") != "1" || h.Get("X-RateLimit-Limit-Tokens") != "100000" ||
		h.Get("X-RateLimit-Remaining-Tokens") != strconv.Itoa(100_000-200) {
		t.Errorf("headers %v", h)
	}
	g.Settle(used(10, 5))
	g.SetHeaders(h)
	if h.Get("X-RateLimit-Remaining-Tokens") != strconv.Itoa(100_000-15) {
		t.Errorf("after the settlement %v", h)
	}
	for {
		g, err := r.Admit(t.Context(), r.work("a", ""))
		if err == nil {
			g.Settle(used(1, 1))
			continue
		}
		ref := refusalOf(t, err)
		if ref.Err.Status != 429 || ref.Err.Code != "rate_limited" || ref.Err.RetryAfter <= 0 || ref.Err.RetryAfter > 10*time.Second {
			t.Errorf("refusal %+v", ref.Err)
		}
		if ref.Header.Get("X-RateLimit-Remaining-Requests") != "0" || ref.Header.Get("X-RateLimit-Reset-Requests") == "" {
			t.Errorf("headers of the refusal %v", ref.Header)
		}
		return
	}
}

// TestTokenRateBitesByReservation: 100 parallel calls of 200 tokens against
// 1,000 tokens per minute: at most 5 in flight (requirement 10).
func TestTokenRateBitesByReservation(t *testing.T) {
	r := newRig(t, limitOn(tenants.LimitTotal, tenants.PerMinute, 1000))
	var in atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := r.Admit(t.Context(), r.work("a", "")); err == nil {
				in.Add(1)
			}
		})
	}
	wg.Wait()
	if n := in.Load(); n != 5 {
		t.Errorf("%d calls of 200 tokens are in flight within 1,000 tokens: want 5", n)
	}
}

// TestConcurrencySlots: 1,000 requests that end in all ways leave no slot in
// use (requirement 13), and a refusal burns nothing else (14).
func TestConcurrencySlots(t *testing.T) {
	r := newRig(t, func(s *tenants.Snapshot) {
		s.Limits = []tenants.Limit{{ID: "slots", TenantID: "a", Kind: tenants.LimitConcurrent, Window: tenants.AtOnce, Limit: 8},
			{ID: "rpd", TenantID: "a", Kind: tenants.LimitRequests, Window: tenants.PerDay, Limit: 1 << 40}}
	})
	r.pool.n.Store(4)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			if i%3 == 0 {
				cancel() // gone before, or while it waits
			}
			defer cancel()
			g, err := r.Admit(ctx, r.work("a", "standard"))
			if err != nil {
				return
			}
			if i%2 == 0 {
				g.Settle(tenants.UsageRecord{}) // no attempt was made
				return
			}
			admitted.Add(1)
			g.Correct(7)
			g.Settle(used(7, 3))
		})
	}
	wg.Wait()
	for _, st := range r.Limits(r.work("a", "").Identity, "m", "") {
		switch {
		case st.Limit.ID == "slots" && st.Used != 0:
			t.Errorf("%d slots in use", st.Used)
		case st.Limit.ID == "rpd" && (st.Used != admitted.Load() || st.Reserved != 0):
			t.Errorf("%d used and %d reserved: want %d and 0", st.Used, st.Reserved, admitted.Load())
		}
	}
	if running, waiting := r.lineOf("m").lengths(); running != 0 || waiting != 0 {
		t.Errorf("%d running, %d waiting", running, waiting)
	}
}

// TestShadow: a shadow limit refuses nothing and counts.
func TestShadow(t *testing.T) {
	r := newRig(t, func(s *tenants.Snapshot) {
		s.Limits = []tenants.Limit{{ID: "l", TenantID: "a", Kind: tenants.LimitRequests, Window: tenants.PerDay, Limit: 3, Shadow: true}}
	})
	for range 10 {
		r.admit(t, r.work("a", "")).Settle(used(1, 1))
	}
	st := r.Limits(r.work("a", "").Identity, "m", "")
	if len(st) != 1 || st[0].Used != 3 {
		t.Errorf("status %+v: want 3 counted", st)
	}
	r.countShadow()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shadowed["l"] != 7 {
		t.Errorf("%v would have been refused: want 7", r.shadowed)
	}
}

// TestStrictStreamEnds: an answer that outgrows a budget ends before the token
// that has no room; a rate or a tenant that prefers service only owes it.
func TestStrictStreamEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		window tenants.LimitWindow
		strict bool
		ends   bool
	}{{"budget, strict", tenants.PerDay, true, true}, {"budget, served", tenants.PerDay, false, false}, {"rate, strict", tenants.PerMinute, true, false}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, limitOn(tenants.LimitOutput, c.window, 150))
			r.snap.Tenants[0].Strict = c.strict
			g := r.admit(t, r.work("a", "")) // bounded by 100
			for n := 1; ; n++ {
				err := g.Delivered(n)
				var api *openai.Error
				if errors.As(err, &api) {
					if !c.ends || n <= 100 || api.Status != 429 || api.Code != "quota_exceeded" {
						t.Fatalf("token %d ended the stream: %v", n, err)
					}
					break
				}
				if n == 400 {
					if c.ends {
						t.Fatal("400 tokens within a budget of 150")
					}
					break
				}
			}
			g.Settle(used(10, 100))
		})
	}
}

// TestQueueOrder: with the pool full, a higher band goes first, whoever came
// first; queue time and shedding are answered with their reasons.
func TestQueueOrder(t *testing.T) {
	r := newRig(t, func(s *tenants.Snapshot) {
		for _, i := range []int{0, 2} { // those that go on wait for as long as the test takes
			s.Classes[i].MaxQueueMillis = 120_000
		}
	})
	r.pool.n.Store(1)
	first := r.admit(t, r.work("a", "standard")) // takes the only slot
	order := make(chan string, 3)
	line := r.lineOf("m")
	wait := func(tenant, class string, queued int) {
		go func() {
			g, err := r.Admit(t.Context(), r.work(tenant, class))
			if err != nil {
				order <- err.Error()
				return
			}
			order <- class
			g.Settle(used(1, 1))
		}()
		await(t, "the request waits", func() bool { _, n := line.lengths(); return n == queued })
	}
	wait("a", "standard", 1)
	wait("b", "interactive", 2)
	if _, err := r.Admit(t.Context(), r.work("a", "hasty")); refusalOf(t, err).Err.Code != "queue_timeout" || refusalOf(t, err).Outcome != tenants.OutcomeShed {
		t.Errorf("a request with 1 ms of patience: %v", err)
	}
	if _, err := r.Admit(t.Context(), r.work("a", "batch")); refusalOf(t, err).Err.Code != "shed_by_slo_class" || refusalOf(t, err).Err.Status != 503 {
		t.Errorf("a sheddable request before a full pool: %v", err)
	}
	first.Settle(used(1, 1))
	if got := fmt.Sprint(<-order, <-order); got != fmt.Sprint("interactive", "standard") {
		t.Errorf("order %s", got)
	}
	await(t, "nobody is left", func() bool { n, m := line.lengths(); return n+m == 0 })
}

// TestQueueGivesWayToDeadline: who waits leaves with its context.
func TestQueueGivesWayToDeadline(t *testing.T) {
	r := newRig(t, limitOn(tenants.LimitRequests, tenants.PerDay, 10))
	r.pool.n.Store(1)
	first := r.admit(t, r.work("b", "standard"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.Admit(ctx, r.work("a", "standard")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if st := r.Limits(r.work("a", "").Identity, "m", ""); st[0].Remaining != 10 {
		t.Errorf("%d of 10 left after a request that only waited", st[0].Remaining)
	}
	first.Settle(used(1, 1))
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestDraftIsReserved: a cascade's request reserves what both pools take, each
// at its price.
func TestDraftIsReserved(t *testing.T) {
	r := newRig(t, func(s *tenants.Snapshot) {
		s.Prices = append(s.Prices, tenants.Price{Version: 1, Tier: tenants.Cloud, Model: "small", Input: 100_000, Output: 100_000})
	})
	w := r.work("a", "")
	alone := r.newGrant(r.current(time.Now()), &w, time.Now())
	w.Drafts = []string{"small"}
	both := r.newGrant(r.current(time.Now()), &w, time.Now())
	one, two := alone.request.Amount, both.request.Amount
	if two.Input != 2*one.Input || two.Output != 2*one.Output || two.Requests != 1 || two.Cost != one.Cost+one.Cost/10 {
		t.Errorf("reserved %+v, without a draft %+v", two, one)
	}
	if both.request.Likely.Output <= alone.request.Likely.Output {
		t.Errorf("likely %+v, without a draft %+v", both.request.Likely, alone.request.Likely)
	}
}

// TestGiveBack: an answer that another gateway has been paid for leaves the
// budgets of this one.
func TestGiveBack(t *testing.T) {
	r := newRig(t, limitOn(tenants.LimitTotal, tenants.PerDay, 1000))
	w := r.work("a", "")
	left := func() int64 { return r.Limits(w.Identity, "m", "")[0].Remaining }
	row := used(10, 5)
	row.TenantID, row.KeyID, row.DeviceID, row.Tier, row.Model, row.StartedAt = "a", "keya", "d", tenants.Cloud, "m", time.Now()
	r.admit(t, w).Settle(row)
	if n := left(); n != 985 {
		t.Fatalf("%d are left", n)
	}
	r.GiveBack(row)
	r.GiveBack(tenants.UsageRecord{TenantID: "nobody"})
	if n := left(); n != 1000 {
		t.Errorf("%d are left after it was given back", n)
	}
}
