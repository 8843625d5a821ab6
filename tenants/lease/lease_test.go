package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/lease"
	"github.com/weirhq/weir/tenants/ledger"
	"github.com/weirhq/weir/tenants/quota"
)

func TestMain(m *testing.M) { os.Exit(testpg.Run(m)) }

const tenant = "0190c9a4-7f7e-7000-8000-00000000000a"

// rig is a store with a ledger beside it.
type rig struct {
	t      *testing.T
	db     *pgxpool.Pool
	leases *lease.Store
	ledger *ledger.Store
	limit  quota.Limit
}

func newRig(t *testing.T, most int64) *rig {
	db, err := pgxpool.New(context.Background(), testpg.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return &rig{t, db, lease.NewStore(db), ledger.NewStore(db), quota.Limit{ID: "b", Kind: quota.Requests, Window: quota.Month, Max: most}}
}

func (r *rig) number(sql string) (n int64) {
	r.t.Helper()
	if err := r.db.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// counted is what the store says is used.
func (r *rig) counted() int64 {
	return r.number(`select coalesce((select sum(closed) from weir.budgets), 0) + coalesce((select sum(used) from weir.budget_leases where not final), 0)`)
}

// holder is one gateway process, without the gateway.
type holder struct {
	r       *rig
	id      lease.Gateway
	account *quota.Account
}

func (r *rig) holder(node string) *holder {
	r.t.Helper()
	a, err := quota.NewAccount([]quota.Limit{r.limit}, quota.Options{Leased: true, Strict: true}, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	return &holder{r, lease.Gateway{Node: node, Epoch: uuid.NewString(), Name: node}, a}
}

// exchange sends the holder's news as of now.
func (h *holder) exchange(now time.Time) {
	var news []lease.News
	for _, n := range h.account.LeaseNews(nil, now) {
		news = append(news, lease.News{TenantID: tenant, Limit: h.r.limit, LeaseNews: n})
	}
	sent := time.Now()
	replies, err := h.r.leases.Renew(context.Background(), h.id, news)
	if err != nil {
		h.r.t.Error(err)
		return
	}
	for i, reply := range replies {
		if reply.Closed != nil {
			h.account.LeaseClosed(news[i].Budget, news[i].Generation, reply.Closed.Used)
			continue
		}
		h.account.ApplyLease(news[i].Budget, reply.LeaseReply, sent, time.Now())
	}
}

// one tries to admit and settle one request; its row goes to the ledger at
// once where write says so, else it is returned.
func (h *holder) one(write bool) (admitted bool, row tenants.UsageRecord) {
	var res quota.Reservation
	ask := &quota.Request{Tier: "cloud", Amount: quota.Amount{Requests: 1}}
	if !h.account.Admit(ask, time.Now(), &res).OK() {
		h.exchange(time.Now())
		if !h.account.Admit(ask, time.Now(), &res).OK() {
			return false, row
		}
	}
	row = tenants.UsageRecord{AttemptID: uuid.Must(uuid.NewV7()).String(), OperationID: uuid.Must(uuid.NewV7()).String(), TenantID: tenant, Attempt: 1,
		Tier: tenants.Cloud, Model: "m", Outcome: tenants.OutcomeOK, UsageSource: tenants.UsageUpstream, StartedAt: time.Now().UTC(), NodeEpoch: h.id.Epoch}
	res.Settle(quota.Amount{}, time.Now())
	if write {
		h.r.insert(row)
	}
	return true, row
}

func (r *rig) insert(rows ...tenants.UsageRecord) {
	if _, err := r.ledger.Insert(context.Background(), rows); err != nil {
		r.t.Error(err)
	}
}

// TestHoldersNeverExceedTheBudget: gateways that come, idle, die and come back
// admit a budget exactly, and the counter ends as the ledger's sum.
func TestHoldersNeverExceedTheBudget(t *testing.T) {
	const most = 150
	r := newRig(t, most)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(i)))
			node := fmt.Sprint("node", i)
			h := r.holder(node)
			for range 120 {
				switch ok, _ := h.one(true); {
				case ok:
					admitted.Add(1)
				case rng.IntN(2) == 0:
					h.exchange(time.Now().Add(2 * time.Second)) // seen from later: idle blocks go back
				}
				if rng.IntN(25) == 0 { // dies; its successor has all its rows
					h = r.holder(node)
					if _, err := r.leases.Recover(context.Background(), h.id); err != nil {
						t.Error(err)
					}
				}
				if committed := r.number(`select coalesce(sum(closed), 0) + coalesce((select sum(greatest(granted - returned, used)) from weir.budget_leases where not final), 0) from weir.budgets`); committed > most {
					t.Errorf("%d committed of %d", committed, most)
				}
			}
			for range 20 { // what others gave back
				h.exchange(time.Now().Add(2 * time.Second))
				if ok, _ := h.one(true); ok {
					admitted.Add(1)
				}
			}
			h.exchange(time.Now().Add(2 * time.Second))
		})
	}
	wg.Wait()
	last := r.holder("last")
	for ok := true; ok; {
		if ok, _ = last.one(true); ok {
			admitted.Add(1)
		}
	}
	last.exchange(time.Now())
	rows := r.number(`select count(*) from weir.usage_ledger`)
	if n := admitted.Load(); n != most || rows != most || r.counted() != most {
		t.Errorf("%d admitted, %d rows, counter %d: want %d", n, rows, r.counted(), most)
	}
}

// TestFencedHolderGoesOn: a process that was only slow is told that its lease
// is closed; what it has used is counted once, whichever way it is learnt of.
func TestFencedHolderGoesOn(t *testing.T) {
	for _, early := range []bool{true, false} {
		t.Run(map[bool]string{true: "rows before the close", false: "rows after the close"}[early], func(t *testing.T) {
			r := newRig(t, 1000)
			h := r.holder("n")
			var rows []tenants.UsageRecord
			for range 10 {
				ok, row := h.one(false)
				if !ok {
					t.Fatal("refused")
				}
				rows = append(rows, row)
			}
			h.exchange(time.Now()) // 10 are reported
			if early {
				r.insert(rows...)
			}
			if n, err := r.leases.CloseExpired(t.Context(), -time.Hour); err != nil || n != 1 {
				t.Fatalf("%d closed, %v", n, err)
			}
			if !early {
				r.insert(rows...)
			}
			admitted := int64(10)
			if ok, _ := h.one(false); ok { // on the lease that it believes to have
				admitted++
			}
			h.exchange(time.Now()) // learns that it is fenced
			h.exchange(time.Now())
			if ok, _ := h.one(true); ok {
				admitted++
			}
			h.exchange(time.Now())
			if used := r.counted(); used != admitted {
				t.Errorf("%d counted: want %d", used, admitted)
			}
			if n := r.number(`select count(*) from weir.budget_leases where not final`); n != 1 {
				t.Errorf("%d open leases", n)
			}
		})
	}
}

// TestRowsOfTheAbandonedCorrectTheCount: a lease is closed by what was
// reported; rows that the node still brings, or its return, make it exact.
func TestRowsOfTheAbandonedCorrectTheCount(t *testing.T) {
	r := newRig(t, 1000)
	h := r.holder("n")
	var rows []tenants.UsageRecord
	for i := range 12 {
		_, row := h.one(false)
		rows = append(rows, row)
		if i == 7 {
			h.exchange(time.Now()) // 8 are reported
		}
	}
	if _, err := r.leases.CloseExpired(t.Context(), -time.Hour); err != nil {
		t.Fatal(err)
	}
	if n := r.counted(); n != 8 {
		t.Errorf("%d counted at the close: want the 8 that were reported", n)
	}
	r.insert(rows[:6]...)
	r.insert(rows[:6]...) // again
	if n := r.counted(); n != 8 {
		t.Errorf("%d counted with 6 rows", n)
	}
	r.insert(rows[6:11]...)
	if n := r.counted(); n != 11 {
		t.Errorf("%d counted with 11 rows", n)
	}
	if _, err := r.leases.Recover(t.Context(), lease.Gateway{Node: "n", Epoch: "next"}); err != nil {
		t.Fatal(err)
	}
	if n := r.counted(); n != 11 {
		t.Errorf("%d counted after the node's return", n)
	}
}

// TestSharesNeverExceedTheLimit: however demand moves, the shares of live
// gateways sum to at most the limit, and a tenth of it while some are new; once
// all have refreshed theirs, to at most the limit.
func TestSharesNeverExceedTheLimit(t *testing.T) {
	r := newRig(t, 1)
	rng := rand.New(rand.NewPCG(3, 3))
	gateways := []lease.Gateway{{Node: "a", Epoch: "a"}, {Node: "b", Epoch: "b"}, {Node: "c", Epoch: "c"}}
	for _, g := range gateways {
		if _, err := r.leases.Peers(t.Context(), g); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := r.leases.Peers(t.Context(), gateways[0]); err != nil || n != 3 {
		t.Errorf("%d peers, %v", n, err)
	}
	for i := range 60 {
		g := gateways[rng.IntN(3)]
		d := []lease.Demand{{TenantID: tenant, LimitID: "rpm", Asked: rng.Int64N(500), Max: 600, Burst: 100}, {TenantID: tenant, LimitID: "slots", Asked: rng.Int64N(5), Max: 7}}
		s, err := r.leases.Divide(t.Context(), g, d)
		if err != nil {
			t.Fatal(err)
		}
		if s[0].Max < 0 || s[0].Max > 600 || s[1].Max > 7 {
			t.Errorf("shares %+v", s)
		}
		for id, most := range map[string]int64{"rpm": 600, "slots": 7} {
			if sum := r.number(`select sum(max) from weir.rate_shares where limit_id = '` + id + `'`); sum > most+most/10 {
				t.Fatalf("step %d: shares of %s sum to %d", i, id, sum)
			}
		}
	}
	for range 2 {
		for i, g := range gateways {
			d := []lease.Demand{{TenantID: tenant, LimitID: "rpm", Asked: int64(i), Max: 600, Burst: 100}, {TenantID: tenant, LimitID: "slots", Asked: int64(i), Max: 7}}
			if _, err := r.leases.Divide(t.Context(), g, d); err != nil {
				t.Fatal(err)
			}
		}
	}
	for id, most := range map[string]int64{"rpm": 600, "slots": 7} {
		if sum := r.number(`select sum(max) from weir.rate_shares where limit_id = '` + id + `'`); sum > most {
			t.Errorf("after all have refreshed, shares of %s sum to %d", id, sum)
		}
	}
	if err := r.leases.Leave(t.Context(), gateways[0]); err != nil {
		t.Fatal(err)
	}
	if n := r.number(`select count(*) from weir.rate_shares where epoch = 'a'`); n != 0 {
		t.Error("shares of a gateway that has left")
	}
	if err := r.leases.Sweep(t.Context(), time.Now()); err != nil {
		t.Error(err)
	}
}

// TestNewGatewayHasAShareAtOnce: one that comes while another holds all of a
// rate serves, too, and what it takes is the other's from the next refresh on.
func TestNewGatewayHasAShareAtOnce(t *testing.T) {
	r := newRig(t, 1)
	divide := func(g string, asked int64) lease.Share {
		t.Helper()
		s, err := r.leases.Divide(t.Context(), lease.Gateway{Node: g, Epoch: g}, []lease.Demand{{TenantID: tenant, LimitID: "rpm", Asked: asked, Max: 1000, Burst: 1000}})
		if err != nil {
			t.Fatal(err)
		}
		return s[0]
	}
	if s := divide("old", 50); s.Max != 1000 {
		t.Errorf("alone: %+v", s)
	}
	if s := divide("new", 50); s.Max != 50 || s.Burst != 50 {
		t.Errorf("the new one: %+v, want the even part of a tenth", s)
	}
	if s := divide("old", 50); s.Max != 500 {
		t.Errorf("the old one then: %+v", s)
	}
	if s := divide("new", 50); s.Max != 500 {
		t.Errorf("the new one then: %+v", s)
	}
}

// TestRowsWhileALeaseIsClosed: a row that is on its way into the ledger while
// its lease is closed is counted, though the closer has not seen it.
func TestRowsWhileALeaseIsClosed(t *testing.T) {
	r := newRig(t, 50)
	h := r.holder("a")
	admitted, row := h.one(false)
	if !admitted {
		t.Fatal("the first request was refused")
	}
	closer, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Rollback(context.Background())
	if _, err := closer.Exec(t.Context(), `select pg_advisory_xact_lock($1)`, ledger.CloseLock); err != nil {
		t.Fatal(err)
	}
	written := make(chan struct{})
	go func() { defer close(written); r.insert(row) }()
	for deadline := time.Now().Add(time.Minute); r.number(`select count(*) from pg_locks where locktype = 'advisory' and not granted`) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the row does not wait for the lease's closer")
		}
		time.Sleep(5 * time.Millisecond)
	}
	for _, sql := range []string{
		`update weir.budgets set closed = closed + (select sum(used) from weir.budget_leases where not final)`,
		`update weir.budget_leases set final = true, reserved = 0`,
	} {
		if _, err := closer.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := closer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-written:
	case <-time.After(time.Minute):
		t.Fatal("the row still waits for the lease's closer")
	}
	if n := r.counted(); n != 1 {
		t.Errorf("the budget counts %d requests, the ledger 1", n)
	}
}
