package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
)

// stage is a gateway over the pools of a cascade. For each script all their
// engines are new processes: no failure of an earlier one is remembered.
type stage struct {
	*rig
	t      *testing.T
	houses []*house
	trips  atomic.Int64 // requests sent to model servers
	round  int
	script *cascadeScript
	leave  atomic.Pointer[context.CancelFunc] // the client's
}

// house is an address of a pool's instance.
type house struct {
	name, pool string
	first      bool // of its pool
	door       *fake.Door
	server     *httptest.Server
	engine     atomic.Pointer[fake.Engine]
	vote       atomic.Pointer[vote]
}

// ServeHTTP answers questions about answers as the script says.
func (h *house) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if v := h.vote.Load(); v != nil && r.Method == http.MethodPost {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var body map[string]any
		if json.Unmarshal(raw, &body) == nil && asksForVotes(body) {
			v.says(w, r, body)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(raw))
	}
	h.engine.Load().ServeHTTP(w, r)
}

// RoundTrip counts the gateway's requests for answers.
func (g *stage) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "completions") {
		g.trips.Add(1)
	}
	return http.DefaultTransport.RoundTrip(r)
}

func newStage(t *testing.T) *stage {
	g := &stage{t: t}
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	var members []pool.Member
	for _, name := range []string{"small-1", "small-2", "mid-1", "more-1", "big-1", "big-2"} {
		h := &house{name: name, first: strings.HasSuffix(name, "1")}
		h.pool, _, _ = strings.Cut(name, "-")
		h.engine.Store(fake.New(fake.Options{Model: h.pool, Name: name, EngineID: name, Weir: true}))
		var err error
		if h.door, err = fake.NewDoor(); err != nil {
			t.Fatal(err)
		}
		h.server = httptest.NewUnstartedServer(h)
		h.server.Listener.Close()
		h.server.Listener = h.door
		h.server.Start()
		t.Cleanup(func() { h.server.CloseClientConnections(); h.server.Close() })
		g.houses = append(g.houses, h)
		members = append(members, pool.Member{Name: name, URL: "http://" + h.door.Addr().String(), Model: h.pool})
	}
	client := &http.Client{Transport: g}
	g.rig = newRig(t, func(o *Options) {
		var err error
		if o.Pool, err = pool.New(pool.Options{Members: members, Client: client, Interval: 20 * time.Millisecond, Timeout: time.Minute, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		o.Client = client
	})
	background(t, g.opts.Pool.Run)
	return g
}

// play starts the engines of a script.
func (g *stage) play(s *cascadeScript) {
	g.t.Helper()
	g.round++
	g.script = s
	m, err := s.model()
	if err != nil {
		g.t.Fatal(err)
	}
	g.opts.Models["auto"] = m
	of := &g.opts.Timeouts
	of.FirstByte, of.Stall, of.Answer = s.patience(), s.patience(), s.patience()
	var once sync.Once
	for _, h := range g.houses {
		g.staff(h, &once)
	}
	await(g.t, "the engines of the script", func() bool {
		return !slices.ContainsFunc(g.opts.Pool.Status(), func(s pool.Status) bool {
			h := g.houses[slices.IndexFunc(g.houses, func(h *house) bool { return h.name == s.Name })]
			return s.Ready == g.without(h) || s.Ready && (s.Epoch != g.epoch(h) || s.Report == nil)
		})
	})
	for _, h := range g.houses {
		if t := g.tier(h); t >= 0 && s.tiers[t].fault.Fault == refused && (h.first || s.tiers[t].both) {
			h.door.Shut()
			h.server.CloseClientConnections()
		}
	}
}

func (g *stage) epoch(h *house) string { return fmt.Sprint(h.name, ".", g.round) }

// tier is a house's place in the script, -1 without one.
func (g *stage) tier(h *house) int {
	return slices.IndexFunc(g.script.tiers, func(t tierScript) bool { return t.pool == h.pool })
}

func (g *stage) without(h *house) bool {
	t := g.tier(h)
	return t >= 0 && g.script.tiers[t].gone
}

// staff puts a new engine into a house.
func (g *stage) staff(h *house, once *sync.Once) {
	o := fake.Options{Model: h.pool, Name: h.name, EngineID: g.epoch(h), Weir: true, Weights: h.pool, Delay: time.Millisecond,
		Skew: time.Duration(len(h.pool)) * time.Minute}
	if i := g.tier(h); i >= 0 {
		t := &g.script.tiers[i]
		o.Reply = func(string) string { return strings.Join(t.words, "") }
		o.Logprobs = t.logprob
		h.vote.Store(&t.vote)
		if (h.first || t.both) && t.fault.Fault != "" && t.fault.Fault != refused {
			o.Faults = []fake.Script{t.fault}
		}
		s := g.script
		o.Hook = func(ctx context.Context, at fake.Stage, c fake.Call, _ http.ResponseWriter) bool {
			return g.happens(ctx, s, at, c, once)
		}
	}
	e := fake.New(o)
	if g.without(h) {
		drain(e)
	}
	h.engine.Store(e)
	h.server.CloseClientConnections()
	if err := h.door.Open(); err != nil {
		g.t.Fatal(err)
	}
}

func drain(e *fake.Engine) {
	e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/instance/v1/drain", strings.NewReader(`{"draining":true}`)))
}

// happens plays what the script has for the time of the first request.
func (g *stage) happens(ctx context.Context, s *cascadeScript, at fake.Stage, c fake.Call, once *sync.Once) bool {
	if at == fake.Arrived {
		once.Do(func() {
			if s.lost >= 0 {
				g.loseTier(s.tiers[s.lost].pool)
			}
			if s.twice { // no script that hangs: the first request is there until this returns
				if got := g.chat(g.t, s.body(), contract.HeaderIdempotency, s.key); got.status != http.StatusConflict {
					g.t.Errorf("while the request runs another under its key gets %d %s", got.status, got.body)
				}
			}
		})
	}
	if at == fake.Token && c.Token == s.leavesAt {
		(*g.leave.Load())()
		<-ctx.Done()
		return true
	}
	return false
}

// loseTier takes a pool's instances away and waits until the gateway knows.
func (g *stage) loseTier(name string) {
	for _, h := range g.houses {
		if h.pool == name {
			drain(h.engine.Load())
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(g.opts.Pool.Status(), func(s pool.Status) bool { return s.Model == name && s.Ready }) {
			return
		}
		if time.Now().After(deadline) {
			g.t.Errorf("pool %s is never lost", name)
			return
		}
	}
}

// ask sends the script's request; ok is false when the client has left.
func (g *stage) ask() (got reply, ok bool) {
	ctx, leave := context.WithCancel(g.t.Context())
	defer leave()
	g.leave.Store(&leave)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.server.URL+"/v1/chat/completions", strings.NewReader(g.script.body()))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + g.key}, contract.HeaderIdempotency: {g.script.key}}
	if c := g.script.cap; c > 0 {
		req.Header.Set(contract.HeaderMaxCost, c.String())
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return got, false
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(data), err}, err == nil
}

// settled is the rows of the requests that have ended, and how many requests to
// model servers they took.
func (g *stage) settled() (rows []tenants.UsageRecord, trips int) {
	g.t.Helper()
	await(g.t, "the end of the request", func() bool { return g.InFlight() == 0 })
	for _, s := range g.opts.Pool.Status() {
		if s.InFlight != (route.InFlight{}) {
			g.t.Errorf("%s has %+v in flight", s.Name, s.InFlight)
		}
	}
	return g.newRows(g.t), int(g.trips.Swap(0))
}

// The streaming invariant under any fault script of two to four pools, any of
// which may be absent or go, the last two of which may be equals, and whose models
// may be asked about their answers, under any policy, with a cost cap or a budget
// that runs out:
// what the client gets is a beginning of the final answer, or all of it; there is
// one end; each attempt has one row; what was spent is what the rows say and
// within the budget, and nothing stays reserved; a retry under the same
// Idempotency-Key is never billed again.
func TestCascadeInvariant(t *testing.T) {
	g := newStage(t)
	count := 0
	rapid.Check(t, func(rt *rapid.T) {
		count++
		s := drawCascade(rt, count)
		g.play(s)
		g.settled()
		before := g.opts.Models["auto"].Cascade.Saved()
		got, stayed := g.ask()
		rows, trips := g.settled()
		s.checkRows(rt, rows, trips)
		s.checkMoney(rt, before.Spent, g.opts.Models["auto"].Cascade.Saved().Spent, rows)
		if !stayed {
			return
		}
		s.checkAnswer(rt, t, got, rows)
		if got.status != http.StatusOK || strings.Contains(got.body, `"error"`) {
			return
		}
		again, _ := g.ask()
		if rows, trips := g.settled(); again.body != got.body || len(rows) != 0 || trips != 0 {
			rt.Fatalf("a retry was billed again, or says something else: %s", again.body)
		}
	})
}

// TestCascadeInvariantLong is the same for long, for make soak.
func TestCascadeInvariantLong(t *testing.T) {
	if os.Getenv("WEIR_SOAK") == "" {
		t.Skip("WEIR_SOAK is not set")
	}
	for i := range 20 {
		t.Run(fmt.Sprint("round", i), TestCascadeInvariant)
	}
}

func (s *cascadeScript) checkRows(rt *rapid.T, rows []tenants.UsageRecord, trips int) {
	ids, numbers, ok, counted := map[string]bool{}, map[int64]bool{}, 0, 0
	for _, row := range rows {
		ids[row.AttemptID], numbers[row.Attempt] = true, true
		if row.Outcome == tenants.OutcomeOK {
			ok++
		}
		if row.Attempt <= 1 && row.Outcome != tenants.OutcomeEscalated {
			counted++
		}
		if row.OperationID != rows[0].OperationID {
			rt.Fatalf("rows of two operations: %+v", rows)
		}
	}
	if trips != len(rows) && s.leavesAt < 0 || trips > len(rows) || len(ids) != len(rows) || len(numbers) != len(rows) || len(rows) > 3 || ok > 1 || counted > 1 || ok > counted {
		rt.Fatalf("%d requests to the pools: rows %+v", trips, rows)
	}
}

func (s *cascadeScript) checkMoney(rt *rapid.T, before, after int64, rows []tenants.UsageRecord) {
	sum := int64(0)
	for _, row := range rows {
		sum += row.CostNanoUSD
	}
	if s.cap > 0 && sum > int64(s.cap) {
		rt.Fatalf("of a cap of %d: rows %+v", s.cap, rows)
	}
	if s.set.Budget == nil {
		return
	}
	paid := int64(0)
	for _, row := range rows {
		if row.Model != s.tiers[0].pool {
			paid += row.CostNanoUSD
		}
	}
	if after-before != paid || after > perDay {
		rt.Fatalf("of a budget of %d, %d were spent, then %d: rows %+v", int64(perDay), before, after, rows)
	}
}

func (s *cascadeScript) checkAnswer(rt *rapid.T, t *testing.T, got reply, rows []tenants.UsageRecord) {
	weir := weirAt(t, endOf(got))
	if weir.Attempts != len(rows) {
		rt.Fatalf("the client is told %d attempts: %+v", weir.Attempts, rows)
	}
	if got.status != http.StatusOK {
		if s.answers() && !s.hangs() {
			rt.Fatalf("an answer was there: %d %s", got.status, got.body)
		}
		return
	}
	said, code, done := "", "", true
	if s.stream {
		all := readStreamed(t, got.body)
		said, code, done = all.text, all.code, all.done
	} else {
		said = text(t, got.body)
	}
	if done == (code != "") || !s.allowed(said, done) {
		rt.Fatalf("shown %q, done %v, error %q: %s", said, done, code, got.body)
	}
	if code != "" && s.faultless() {
		rt.Fatalf("nothing was wrong: %s", got.body)
	}
	if broken := s.form && s.max == 0 && s.cap == 0 && !strings.HasSuffix(said, "}"); done && broken && weir.Model == "small" && s.tiers[0].fault.Fault == "" && weir.Reason != cascade.ReasonValidatorFailed {
		rt.Fatalf("a broken form, %+v: %s", weir, got.body)
	}
	sum := int64(0)
	for _, row := range rows {
		sum += row.CostNanoUSD
	}
	if int64(contract.USD(sum)) != int64(weir.CostUSD) {
		rt.Fatalf("the client is told %v, the rows have %d: %+v", weir.CostUSD, sum, rows)
	}
}

// endOf is an answer of which nothing but the last event is left.
func endOf(got reply) reply {
	all := slices.DeleteFunc(events(got.body), func(e string) bool { return e == "[DONE]" })
	if len(all) > 0 {
		got.body = all[len(all)-1]
	}
	return got
}

// weirOfEnd is the weir object of an answer's end.
func weirOfEnd(t *testing.T, got reply) map[string]any {
	t.Helper()
	return weirOf(t, endOf(got).body)
}
