package quota

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// node is a gateway in the tests: an account, and the wire to the store.
type node struct {
	name, epoch string
	account     *Account
	open        []*Reservation
	settled     int64 // what its ledger rows sum to
}

func newNode(t interface{ Fatal(...any) }, name string, epoch int, budget int64, strict bool) *node {
	a, err := NewAccount([]Limit{{ID: "b", Kind: Cost, Window: Month, Max: budget}}, Options{Leased: true, Strict: strict}, noon)
	if err != nil {
		t.Fatal(err)
	}
	return &node{name: name, epoch: fmt.Sprint(epoch), account: a}
}

// report exchanges one message with the store. Losses: 1 loses the request, 2
// the reply.
func (n *node) report(b *Budget, rule Blocks, now time.Time, loss int) {
	for _, m := range n.account.LeaseNews(nil, now) {
		if loss == 1 {
			return
		}
		reply, err := b.Renew(Holder{n.name, n.epoch, m.Generation}, m.LeaseRequest, rule, now)
		var closed *ClosedLease
		switch {
		case loss == 2:
		case errors.As(err, &closed):
			n.account.LeaseClosed(m.Budget, m.Generation, closed.Used)
		case err == nil:
			n.account.ApplyLease(m.Budget, reply, now, now)
		}
	}
}

func (n *node) admit(cost int64, now time.Time) Verdict {
	res := new(Reservation)
	v := n.account.Admit(&Request{Amount: Amount{Cost: cost}}, now, res)
	if v.OK() {
		n.open = append(n.open, res)
	}
	return v
}

func (n *node) settle(i int, cost int64, now time.Time) {
	if n.open[i].Settle(Amount{Cost: cost}, now) {
		n.settled += cost
	}
	n.open = append(n.open[:i], n.open[i+1:]...)
}

// peers.md B 15: three gateways never admit more than the budget, and all of
// it once blocks that lie idle have gone back.
func TestThreeGatewaysShareABudgetExactly(t *testing.T) {
	const budget = 50
	b := Budget{Max: budget}
	rule := DefaultBlocks(budget)
	var nodes []*node
	for i := range 3 {
		nodes = append(nodes, newNode(t, fmt.Sprint("g", i), 1, budget, true))
	}
	admitted := 0
	now := noon
	try := func(n *node) {
		v := n.admit(1, now)
		if v.Reason == LeaseWanted { // a gateway asks at once and tries again
			n.report(&b, rule, now, 0)
			v = n.admit(1, now)
		}
		if v.OK() {
			admitted++
			n.settle(len(n.open)-1, 1, now)
		} else if v.RetryAfter > 2*time.Second && admitted < budget && b.Committed() > int64(admitted) {
			t.Fatalf("told to wait %s while others hold %d unspent", v.RetryAfter, b.Committed()-int64(admitted))
		}
	}
	for i := range 200 {
		try(nodes[i%3])
	}
	if admitted > budget {
		t.Fatalf("%d admitted on a budget of %d", admitted, budget)
	}
	t.Logf("%d of %d admitted before idle blocks went back", admitted, budget)
	for range 12 { // 2.4 s of reports, in which only g0 is asked
		now = now.Add(200 * time.Millisecond)
		for _, n := range nodes {
			n.report(&b, rule, now, 0)
		}
		try(nodes[0])
	}
	for range 100 {
		try(nodes[0])
	}
	for _, n := range nodes { // the last use is told by a report
		n.report(&b, rule, now, 0)
	}
	if admitted != budget || b.Used() != budget || b.Remaining() != 0 {
		t.Errorf("%d admitted, store counts %d, remaining %d, want %d, %d, 0", admitted, b.Used(), b.Remaining(), budget, budget)
	}
}

// Messages get lost, gateways die and come back, leases expire and are
// reclaimed: strict gateways together never pass the budget, and in the end
// the store's counter is the sum of the ledger.
func TestLeasesNeverExceedTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.Int64Range(1, 400).Draw(t, "budget")
		rule := Blocks{Parts: 2, Near: rapid.Int64Range(0, 40).Draw(t, "near"), TTL: 10 * time.Second}
		w := &leaseWorld{b: Budget{Max: budget}, rule: rule, now: noon, budget: budget, t: t}
		for i := range 3 {
			w.nodes = append(w.nodes, newNode(t, fmt.Sprint("g", i), 0, budget, true))
		}
		t.Repeat(map[string]func(*rapid.T){
			"":        w.check,
			"time":    func(t *rapid.T) { w.now = w.now.Add(time.Duration(rapid.Int64Range(0, 4e9).Draw(t, "ns"))) },
			"report":  func(t *rapid.T) { w.pick(t).report(&w.b, rule, w.now, rapid.IntRange(0, 2).Draw(t, "loss")) },
			"admit":   w.admit,
			"settle":  w.settle,
			"crash":   w.crash,
			"reclaim": w.reclaim,
		})
		w.finish(t)
	})
}

type leaseWorld struct {
	t      *rapid.T
	b      Budget
	rule   Blocks
	now    time.Time
	budget int64
	nodes  []*node
	dead   []*node
	epochs int
}

func (w *leaseWorld) pick(t *rapid.T) *node {
	return w.nodes[rapid.IntRange(0, len(w.nodes)-1).Draw(t, "node")]
}

func (w *leaseWorld) admit(t *rapid.T) {
	n := w.pick(t)
	cost := rapid.Int64Range(0, 20).Draw(t, "cost")
	if n.admit(cost, w.now).Reason == LeaseWanted {
		n.report(&w.b, w.rule, w.now, 0)
		n.admit(cost, w.now)
	}
}

func (w *leaseWorld) settle(t *rapid.T) {
	n := w.pick(t)
	if len(n.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(n.open)-1).Draw(t, "open")
	n.settle(i, rapid.Int64Range(0, n.open[i].estimate.bound.Cost).Draw(t, "actual"), w.now)
}

// crash kills a gateway with all it holds; what its spool had is its settled
// sum. It comes back under a new epoch.
func (w *leaseWorld) crash(t *rapid.T) {
	i := rapid.IntRange(0, len(w.nodes)-1).Draw(t, "node")
	w.epochs++
	old := w.nodes[i]
	w.dead = append(w.dead, old)
	w.nodes[i] = newNode(t, old.name, w.epochs, w.budget, true)
}

// reclaim closes expired leases by what the ledger holds of them. A living
// gateway may be among them: it was only slow.
func (w *leaseWorld) reclaim(*rapid.T) {
	for _, l := range w.b.Expired(w.now) {
		for _, n := range append(w.dead, w.nodes...) {
			if n.name != l.Node || n.epoch != l.Epoch || len(n.open) > 0 && !contains(w.dead, n) {
				continue // the ledger of a living one is not complete
			}
			used := n.settled - w.closedFor(l.Holder)
			if err := w.b.Close(l.Holder, used); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// closedFor is what earlier generations of the same process were closed at.
func (w *leaseWorld) closedFor(h Holder) (sum int64) {
	for _, l := range w.b.Leases {
		if l.Final && l.Node == h.Node && l.Epoch == h.Epoch {
			sum += l.Used
		}
	}
	return sum
}

func contains(list []*node, n *node) bool {
	for _, o := range list {
		if o == n {
			return true
		}
	}
	return false
}

func (w *leaseWorld) ledger() (sum int64) {
	for _, n := range append(w.dead, w.nodes...) {
		sum += n.settled
	}
	return sum
}

func (w *leaseWorld) check(t *rapid.T) {
	at := w.ledger()
	for _, n := range w.nodes {
		for _, r := range n.open {
			at += r.estimate.bound.Cost
		}
	}
	if at > w.budget || w.b.Committed() > w.budget {
		t.Fatalf("%d used and reserved, %d committed, on a budget of %d", at, w.b.Committed(), w.budget)
	}
}

// finish ends all requests, lets dead leases expire and compares the sums.
func (w *leaseWorld) finish(t *rapid.T) {
	for _, n := range w.nodes {
		for len(n.open) > 0 {
			n.settle(0, n.open[0].estimate.bound.Cost, w.now)
		}
	}
	for range 3 {
		w.now = w.now.Add(w.rule.TTL / 2)
		for _, n := range w.nodes {
			n.report(&w.b, w.rule, w.now, 0)
		}
		w.reclaim(t)
	}
	if w.b.Used() != w.ledger() || w.b.Committed() != w.ledger() {
		t.Fatalf("store counts %d used, %d committed, ledger sums to %d", w.b.Used(), w.b.Committed(), w.ledger())
	}
}

func TestFencedGatewayAdmitsNothing(t *testing.T) {
	b := Budget{Max: 100}
	rule := Blocks{Parts: 1, TTL: 10 * time.Second}
	n := newNode(t, "g", 1, 100, true)
	n.admit(1, noon)
	n.report(&b, rule, noon, 0)
	if v := n.admit(60, noon); !v.OK() {
		t.Fatal(v)
	}
	late := noon.Add(time.Minute) // the process was paused
	if v := n.admit(1, late); v.Reason != LeaseWanted {
		t.Errorf("an expired lease admits: %+v", v)
	}
	l := b.Expired(late)
	if len(l) != 1 {
		t.Fatalf("%d expired", len(l))
	}
	if err := b.Close(l[0].Holder, 0); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(l[0].Holder, 0); !errors.Is(err, ErrNoLease) {
		t.Errorf("closing twice: %v", err)
	}
	if _, err := b.Renew(l[0].Holder, LeaseRequest{Ask: 1}, rule, late); !errors.Is(err, ErrLeaseClosed) {
		t.Errorf("a closed lease was renewed: %v", err)
	}
	n.report(&b, rule, late, 0) // learns of the close
	n.report(&b, rule, late, 0) // asks under a new generation, for what is open
	if b.Committed() < 60 {
		t.Errorf("what is open was not leased anew: committed %d", b.Committed())
	}
	n.settle(0, 60, late)
	n.report(&b, rule, late, 0)
	if b.Used() != 60 {
		t.Errorf("store counts %d, want 60", b.Used())
	}
	b.Late(5)
	if b.Used() != 65 {
		t.Errorf("with a late row %d, want 65", b.Used())
	}
}

func TestStoreAway(t *testing.T) {
	rule := Blocks{Parts: 4, TTL: 10 * time.Second}
	for _, strict := range []bool{false, true} {
		b := Budget{Max: 100}
		n := newNode(t, "g", 1, 100, strict)
		n.admit(1, noon)
		n.report(&b, rule, noon, 0) // a block of 25
		n.account.StoreAway()
		if v := n.admit(20, noon); !v.OK() {
			t.Errorf("strict %v: within the lease: %+v", strict, v)
		}
		late := noon.Add(time.Hour)
		if v := n.admit(80, late); v.OK() == strict {
			t.Errorf("strict %v: within the remainder last known, after the lease: %+v", strict, v)
		}
		if v := n.admit(80, late); v.OK() {
			t.Errorf("strict %v: beyond the remainder last known: %+v", strict, v)
		}
	}
}

func TestStartWithoutTheStore(t *testing.T) {
	n := newNode(t, "g", 1, 100, false)
	if v := n.admit(1, noon); v.Reason != LeaseWanted {
		t.Errorf("nothing is known, yet %+v", v)
	}
	n.account.AssumeRemaining("b", 30, noon)
	if v := n.admit(30, noon); !v.OK() {
		t.Errorf("within the remainder of the snapshot: %+v", v)
	}
	if v := n.admit(1, noon); v.OK() {
		t.Errorf("beyond the remainder of the snapshot: %+v", v)
	}
}

func TestIdleBlocksAndOldPeriodsGoBack(t *testing.T) {
	b := Budget{Max: 100}
	rule := Blocks{Parts: 2, TTL: time.Minute}
	n := newNode(t, "g", 1, 100, true)
	n.admit(1, noon)
	n.report(&b, rule, noon, 0)
	if n.admit(10, noon); b.Remaining() != 50 {
		t.Fatalf("remaining %d", b.Remaining())
	}
	n.report(&b, rule, noon.Add(time.Second), 0)
	if b.Remaining() != 90 {
		t.Errorf("after a second idle %d remain, want 90", b.Remaining())
	}
	december := time.Date(2026, 12, 1, 0, 0, 1, 0, time.UTC)
	news := n.account.LeaseNews(nil, december)
	if len(news) != 1 || news[0].Budget.Period != PeriodAt(Month, noon) {
		t.Fatalf("in a new month %+v, want the old one's", news)
	}
	n.settle(0, 4, december)
	n.report(&b, rule, december, 0) // both periods go to one Budget here; the counts are November's
	if got := len(n.account.LeaseNews(nil, december.Add(time.Hour))); got != 0 {
		t.Errorf("%d messages after the old month's last report, want none", got)
	}
}

func TestTheStoreHearsOnlyNews(t *testing.T) {
	b := Budget{Max: 100}
	rule := Blocks{Parts: 2, TTL: 10 * time.Second}
	n := newNode(t, "g", 1, 100, true)
	news := func(at time.Duration) int { return len(n.account.LeaseNews(nil, noon.Add(at))) }
	if got := news(0); got != 0 {
		t.Errorf("%d messages before anybody asked", got)
	}
	n.admit(10, noon)
	n.report(&b, rule, noon, 0)
	n.admit(10, noon)
	if got := news(100 * time.Millisecond); got != 1 {
		t.Errorf("%d messages after an admission, want 1", got)
	}
	n.report(&b, rule, noon, 2) // its reply is lost
	if got := news(100 * time.Millisecond); got != 1 {
		t.Errorf("%d messages after a lost reply, want 1", got)
	}
	n.report(&b, rule, noon.Add(time.Second), 0)
	if got := news(2 * time.Second); got != 0 {
		t.Errorf("%d messages when nothing is new", got)
	}
	if got := news(6 * time.Second); got != 1 {
		t.Errorf("%d messages when half the lease is over and a request is open, want 1", got)
	}
	n.settle(0, 10, noon.Add(6*time.Second))
	n.report(&b, rule, noon.Add(8*time.Second), 0) // gives the idle block back
	if got := news(time.Hour); got != 0 || b.Used() != 10 || b.Remaining() != 90 {
		t.Errorf("%d messages of an idle budget, used %d, remaining %d", got, b.Used(), b.Remaining())
	}
}

// TestALargeRefusalHoldsUpNobody: after a request that the budget cannot take,
// a smaller one gets its block with one message.
func TestALargeRefusalHoldsUpNobody(t *testing.T) {
	for _, large := range []int64{60, 40} { // more than the budget; more than is left of it
		b := Budget{Max: 50}
		rule := DefaultBlocks(50)
		other, n := newNode(t, "other", 1, 50, true), newNode(t, "g", 1, 50, true)
		other.admit(20, noon)
		other.report(&b, rule, noon, 0)
		other.admit(20, noon)
		n.admit(large, noon)
		n.report(&b, rule, noon, 0)
		if v := n.admit(large, noon); v.Reason != TooLarge && v.Reason != QuotaExhausted {
			t.Errorf("%d: %+v", large, v)
		}
		if v := n.admit(10, noon); !v.OK() {
			if v.Reason != LeaseWanted {
				t.Fatalf("10 after %d: %+v", large, v)
			}
			n.report(&b, rule, noon, 0)
			if v = n.admit(10, noon); !v.OK() {
				t.Errorf("10 after %d, with news of the store: %+v", large, v)
			}
		}
	}
}

// TestRemainingDoesNotDip: a block on its way back to the store remains.
func TestRemainingDoesNotDip(t *testing.T) {
	b := Budget{Max: 100}
	n := newNode(t, "g", 1, 100, true)
	n.admit(10, noon)
	n.report(&b, DefaultBlocks(100), noon, 0)
	n.admit(10, noon)
	remaining := func(now time.Time) int64 { return n.account.Status(&Request{}, now, nil)[0].Remaining }
	later := noon.Add(2 * time.Second)
	n.report(&b, DefaultBlocks(100), later, 1) // the block is named as returned, the message lost
	if got := remaining(later); got != 90 {
		t.Errorf("%d remain while the block goes back, want 90", got)
	}
	n.report(&b, DefaultBlocks(100), later, 0)
	if got := remaining(later); got != 90 {
		t.Errorf("%d remain, want 90", got)
	}
}
