package admit_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/internal/testproc"
)

// soak chooses the full counts.
func soak(short, full int) int {
	if os.Getenv("WEIR_SOAK") != "" {
		return full
	}
	return short
}

// load sends requests from some clients until stop, and notes the operations
// that were answered whole.
type load struct {
	answered sync.Map // operation -> struct{}
	count    atomic.Int64
	refused  atomic.Int64 // statuses other than 200
	broken   atomic.Int64 // connections
	last     atomic.Value // string: what a refusal said
}

func (l *load) run(ctx context.Context, f *fleet, clients int, more string) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				r := f.nodes[i%len(f.nodes)].ask(context.WithoutCancel(ctx), more)
				switch {
				case r.err != nil:
					l.broken.Add(1)
					time.Sleep(5 * time.Millisecond) // a dead gateway refuses at once
				case r.status == 200:
					l.answered.Store(r.header.Get(contract.HeaderRequestID), struct{}{})
					l.count.Add(1)
				default:
					l.refused.Add(1)
					l.last.Store(r.body)
				}
			}
		})
	}
	return &wg
}

// missing counts answered operations without their one row.
func (l *load) missing(f *fleet) (n int) {
	rows, err := f.db.Query(context.Background(), `select operation_id::text, count(*) filter (where outcome = 'ok') from weir.usage_ledger where tenant_id = $1 group by 1`, f.tenant)
	if err != nil {
		f.t.Fatal(err)
	}
	defer rows.Close()
	found := map[string]int{}
	for rows.Next() {
		var op string
		var oks int
		if err := rows.Scan(&op, &oks); err != nil {
			f.t.Fatal(err)
		}
		found[op] = oks
	}
	l.answered.Range(func(op, _ any) bool {
		if found[op.(string)] != 1 {
			n++
		}
		return true
	})
	return n
}

// TestKillAtEveryStage: a gateway dies by kill -9 at random moments under load
// (requirement 4). After its restart every answered request has its one row,
// every other that had begun one more, every reservation has ended, and the
// counters equal the ledger.
func TestKillAtEveryStage(t *testing.T) {
	f := newFleet(t, testpg.Start(t), 1, fake.Options{MaxTokens: 6, TTFT: 5 * time.Millisecond, ITL: 3 * time.Millisecond}, true,
		limit{kind: "requests", window: "month", max: 1_000_000}, limit{kind: "total_tokens", window: "month", max: 1_000_000_000},
		limit{kind: "concurrent", window: "at_once", max: 64})
	n := f.nodes[0]
	rng := rand.New(rand.NewPCG(4, 9))
	var l load
	for range soak(3, 100) {
		ctx, cancel := context.WithCancel(t.Context())
		clients := l.run(ctx, f, 12, `,"stream":true`)
		before := l.count.Load()
		eventually(t, "requests are answered", func() bool { return l.count.Load() > before+5 })
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond) // any moment of a request's life
		n.kill()
		cancel()
		clients.Wait()
		n.start()
		n.awaitReady()
	}
	eventually(t, "the dead processes' leases are closed", func() bool {
		return f.number(`select count(*) from weir.budget_leases l where tenant_id = $1 and not final
			and epoch not in (select epoch from weir.gateways where seen_at > now() - interval '2 s')`, f.tenant) == 0
	})
	eventually(t, "no answered request misses its row", func() bool { return l.missing(f) == 0 })
	eventually(t, "counters equal the ledger", func() bool {
		return f.reserved() == 0 && f.used("requests") == f.ledgered("1") && f.used("total_tokens") == f.ledgered("input_tokens + output_tokens")
	})
	lost := f.ledgered("(outcome = 'gateway_lost')::int")
	t.Logf("%d answered, %d lost with their gateway", l.count.Load(), lost)
	if lost == 0 {
		t.Error("no request was lost: the test proves little")
	}
	if wrong := f.ledgered("(outcome = 'gateway_lost' and (usage_source <> 'estimated' or cost_nanousd <> 0))::int"); wrong != 0 {
		t.Errorf("%d lost rows are not marked as estimated, or are charged", wrong)
	}
	if inUse := n.metric("weir_admission_open_reservations"); inUse != "0" {
		t.Errorf("%s reservations are open", inUse)
	}
}

// TestDatabaseAway: PostgreSQL is stopped under load (requirements 20, 21):
// every request of a known key of a tenant that prefers service is served, the
// gateway stays ready as degraded, and no row is lost.
func TestDatabaseAway(t *testing.T) {
	server := testpg.NewServer(t)
	f := newFleet(t, server.URL(), 2, fake.Options{MaxTokens: 4, ITL: 2 * time.Millisecond}, false,
		limit{kind: "requests", window: "month", max: 1_000_000}, limit{kind: "requests", window: "minute", max: 1_000_000})
	var l load
	ctx, cancel := context.WithCancel(t.Context())
	clients := l.run(ctx, f, 8, "")
	eventually(t, "requests are answered", func() bool { return l.count.Load() > 50 })
	server.Stop()
	for _, n := range f.nodes {
		eventually(t, "a gateway is degraded", func() bool { return n.status() == "degraded" })
	}
	began := l.count.Load()
	memory := []int{f.nodes[0].memory(), f.nodes[1].memory()}
	away := time.After(time.Duration(soak(12, 300)) * time.Second) // leases of 10 s end meanwhile
	for done := false; !done; {
		select {
		case <-away:
			done = true
		case <-time.After(200 * time.Millisecond):
			for _, n := range f.nodes {
				eventually(t, "a gateway is degraded still", func() bool {
					s := n.status()
					if s == "ready" || s == "starting" {
						t.Fatalf("status %s while the database is away", s)
					}
					return s == "degraded" // a late probe makes it "no instance"
				})
			}
		}
	}
	during := l.count.Load() - began
	for i, n := range f.nodes {
		if grown := n.memory() - memory[i]; grown > 50<<10 && !testproc.Race {
			t.Errorf("gateway %d grew by %d KiB while the database was away", i, grown)
		}
	}
	server.Start(t)
	f.db.Reset() // its idle connections ended with the server
	for _, n := range f.nodes {
		n.awaitReady()
	}
	cancel()
	clients.Wait()
	t.Logf("%d answered, %d of them without the database", l.count.Load(), during)
	if l.refused.Load()+l.broken.Load() != 0 || during < 50 {
		t.Errorf("%d refused, %d broken, %d answered during the outage; the last refusal: %v", l.refused.Load(), l.broken.Load(), during, l.last.Load())
	}
	eventually(t, "no row is lost", func() bool { return l.missing(f) == 0 })
	eventually(t, "counters equal the ledger", func() bool { return f.reserved() == 0 && f.used("requests") == f.ledgered("1") })
}

// TestStartWithoutDatabase: a gateway that starts while the database is away
// serves from what is on its disk; a tenant that prefers service has the
// remainder that was noted, and no more.
func TestStartWithoutDatabase(t *testing.T) {
	server := testpg.NewServer(t)
	f := newFleet(t, server.URL(), 1, fake.Options{MaxTokens: 1}, false, limit{kind: "requests", window: "month", max: 30})
	n := f.nodes[0]
	served := 0
	for range 10 {
		if r := n.ask(t.Context(), ""); r.status == 200 {
			served++
		}
	}
	noted := filepath.Join(n.dir, "data", "budgets.json")
	eventually(t, "the remainder is noted", func() bool {
		b, _ := os.ReadFile(noted)
		return strings.Contains(string(b), `"Remaining":20`)
	})
	server.Stop()
	n.kill()
	n.start()
	eventually(t, "a gateway is degraded", func() bool { return n.status() == "degraded" })
	for r := (reply{status: 200}); r.status == 200; served++ {
		if r = n.ask(t.Context(), ""); r.status != 200 {
			served--
		}
	}
	if served != 30 {
		t.Errorf("%d served of a budget of 30, 10 of them before the start without the database", served)
	}
	server.Start(t)
	f.db.Reset() // its idle connections ended with the server
	eventually(t, "all rows", func() bool { return f.ledgered("1") == 30 && f.used("requests") == 30 })
}

// memory is the process's anonymous memory in KiB; rows on disk are not in it.
func (n *node) memory() int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.child.PID()))
	if err != nil {
		n.f.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.Atoi(strings.Fields(v)[0])
			if err != nil {
				n.f.t.Fatal(err)
			}
			return kib
		}
	}
	n.f.t.Fatal("no RssAnon")
	return 0
}

// TestSlotsAfterAborts: 1,000 aborted requests leave no slot in use, and each
// has at most one row (requirements 5, 13).
func TestSlotsAfterAborts(t *testing.T) {
	f := newFleet(t, testpg.Start(t), 1, fake.Options{MaxTokens: 50, ITL: time.Millisecond}, false,
		limit{kind: "concurrent", window: "at_once", max: 40}, limit{kind: "output_tokens", window: "month", max: 1 << 40})
	n := f.nodes[0]
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			for j := range 25 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+(i*25+j)%40)*time.Millisecond)
				n.ask(ctx, `,"stream":true`)
				cancel()
			}
			n.leaveAfter(t, 1) // however late it comes
		})
	}
	wg.Wait()
	eventually(t, "no reservation is open", func() bool { return n.metric("weir_admission_open_reservations") == "0" })
	if got := f.parallel(40, ""); got[200] != 40 {
		t.Errorf("40 requests for 40 slots: %v", got)
	}
	eventually(t, "counters equal the ledger", func() bool { return f.reserved() == 0 && f.used("output_tokens") == f.ledgered("output_tokens") })
	if twice := f.number(`select count(*) from (select operation_id from weir.usage_ledger where tenant_id = $1 group by 1 having count(*) > 1) x`, f.tenant); twice != 0 {
		t.Errorf("%d operations have more than one row", twice)
	}
	if f.ledgered("(outcome = 'client_cancelled' and output_tokens > 0)::int") == 0 {
		t.Error("no abort came in the middle of a stream: the test proves little")
	}
}

// TestRandomNamesMintNoSeries: names that clients make up become no labels
// (requirement 22).
func TestRandomNamesMintNoSeries(t *testing.T) {
	f := newFleet(t, testpg.Start(t), 1, fake.Options{MaxTokens: 1}, false)
	n := f.nodes[0]
	n.ask(t.Context(), "")
	series := func() int {
		resp, err := f.client.Get("http://" + n.ops + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "\n")
	}
	if r := n.askOf(t.Context(), "first-unknown", ""); r.status != 404 {
		t.Fatalf("an unknown model: %d %s", r.status, r.body)
	}
	before := series()
	for i := range soak(1000, 10_000) {
		n.askOf(t.Context(), fmt.Sprintf("made-up-%d", i), fmt.Sprintf(`,"user":"u%d"`, i))
	}
	if after := series(); after > before+5 {
		t.Errorf("%d lines of metrics, %d before", after, before)
	}
}

// TestStrictTenantWithoutDatabase: budgets of a strict tenant are served within
// the lease and refused with Retry-After afterwards; without a budget nothing
// is refused.
func TestStrictTenantWithoutDatabase(t *testing.T) {
	server := testpg.NewServer(t)
	f := newFleet(t, server.URL(), 1, fake.Options{MaxTokens: 2}, true, limit{kind: "requests", window: "month", max: 40})
	served := 0
	one := func() bool {
		ok := f.nodes[0].ask(t.Context(), "").status == 200
		if ok {
			served++
		}
		return ok
	}
	for during := 0; during == 0 && served < 5; { // a block that was idle for a second had gone back before
		eventually(t, "a request is served", one)
		server.Stop()
		during = f.servedFromLease()
		served += during
		server.Start(t)
		f.db.Reset() // its idle connections ended with the server
	}
	if served < 2 || served >= 40 {
		t.Errorf("%d requests served from the lease of a budget of 40", served)
	}
	eventually(t, "the rest of the budget", func() bool { return one() && served == 40 })
	if r := f.nodes[0].ask(t.Context(), ""); r.status != 429 {
		t.Errorf("request 41: %d %s", r.status, r.body)
	}
	eventually(t, "40 rows", func() bool { return f.ledgered("1") == 40 && f.used("requests") == 40 })
}

// servedFromLease counts the requests that are served while the database is away,
// until one is refused as it should be.
func (f *fleet) servedFromLease() (n int) {
	f.t.Helper()
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); n++ {
		r := f.nodes[0].ask(f.t.Context(), "")
		if r.status == 200 {
			continue
		}
		if r.status != 503 || r.code() != "lease_wanted" || r.header.Get("Retry-After") == "" {
			f.t.Fatalf("a refusal without the store: %d %s", r.status, r.body)
		}
		break
	}
	return n
}
