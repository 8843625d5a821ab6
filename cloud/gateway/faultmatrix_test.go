package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
)

// bench is a gateway over fake engines behind doors.
type bench struct {
	*rig
	pool    *pool.Pool
	engines map[string]*fake.Engine
	doors   map[string]*fake.Door
	hold    atomic.Pointer[chan struct{}] // where set, answers wait for it before their fifth token
	cut     atomic.Bool                   // streams die after their last token
}

func (b *bench) wait(ctx context.Context, s fake.Stage, c fake.Call, _ http.ResponseWriter) bool {
	if gate := b.hold.Load(); gate != nil && s == fake.Token && c.Token == 4 {
		select {
		case <-*gate:
		case <-ctx.Done():
		}
	}
	if s == fake.End && b.cut.Load() {
		panic(http.ErrAbortHandler)
	}
	return false
}

// newBench starts engines by name; roles are by the name's first letter: p, d
// or anything else for mixed.
func newBench(t testing.TB, adjust func(*Options), weir bool, names ...string) *bench {
	t.Helper()
	b := &bench{engines: map[string]*fake.Engine{}, doors: map[string]*fake.Door{}}
	newClient := func() *http.Client {
		c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
		t.Cleanup(c.CloseIdleConnections)
		return c
	}
	var members []pool.Member
	for _, name := range names {
		role := map[byte]route.Role{'p': route.Prefill, 'd': route.Decode}[name[0]]
		e := fake.New(fake.Options{Model: "big", Name: name, Role: string(role), Weir: weir, Delay: 50 * time.Millisecond,
			Skew: time.Duration(len(members)) * time.Minute, Hook: b.wait})
		door, err := fake.NewDoor()
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(e)
		s.Listener.Close()
		s.Listener = door
		s.Start()
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		b.engines[name], b.doors[name] = e, door
		members = append(members, pool.Member{Name: name, URL: "http://" + door.Addr().String(), Role: role, Model: "big"})
	}
	b.rig = newRig(t, func(o *Options) {
		var err error
		b.pool, err = pool.New(pool.Options{Client: newClient(), Log: o.Log, Members: members, Interval: 50 * time.Millisecond, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		o.Pool, o.Client = b.pool, newClient()
		if adjust != nil {
			adjust(o)
		}
	})
	background(t, b.pool.Run)
	await(t, "all ready", func() bool {
		for _, s := range b.pool.Status() {
			if !s.Ready || weir && s.Report == nil {
				return false
			}
		}
		return true
	})
	return b
}

func (b *bench) failures(name string) int {
	for _, s := range b.pool.Status() {
		if s.Name == name {
			return s.Failures
		}
	}
	return -1
}

// text joins the deltas of a stream, or reads a whole answer.
func text(t testing.TB, body string) string {
	t.Helper()
	var out strings.Builder
	read := func(data string) {
		var v struct {
			Choices []struct{ Delta, Message struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		for _, c := range v.Choices {
			out.WriteString(c.Delta.Content + c.Message.Content)
		}
	}
	if !strings.HasPrefix(body, "data: ") {
		read(body)
		return out.String()
	}
	for _, e := range events(body) {
		if e != "[DONE]" {
			read(e)
		}
	}
	return out.String()
}

// fate is what a fault does to a request.
type fate struct {
	fault    fake.Fault
	rows     []tenants.Outcome
	failures int // at the faulty instance's breaker
	whole    bool
}

// of adjusts a gateway to a fault: it prefers the instance that has it, and waits
// for a short time where that instance hangs, else for as long as no slow machine
// takes.
func (f fate) of(name string) func(*Options) {
	return func(o *Options) {
		o.Policy = preferring(name)
		o.Timeouts.FirstByte, o.Timeouts.Stall = time.Minute, time.Minute
		if f.fault == fake.FaultStall {
			o.Timeouts.FirstByte, o.Timeouts.Stall = 5*time.Second, 5*time.Second
		}
	}
}

// begins starts the engines before which a fault is tried, and lets other tests
// run while one hangs.
func (f fate) begins(t *testing.T, at string, weir bool, names ...string) *bench {
	t.Helper()
	if f.fault == fake.FaultStall {
		t.Parallel()
	}
	return newBench(t, f.of(at), weir, names...)
}

// befalls lets the fault happen to an instance's requests of a leg, "" for any. Of a
// door that is shut the pool's probes do not hear: their connection is an old one.
func (b *bench) befalls(name string, s fake.Script) {
	if s.Fault == refused {
		b.doors[name].Shut()
		b.opts.Client.CloseIdleConnections()
		return
	}
	b.engines[name].SetFaults(s)
}

// TestFaultsBeforeTheFirstByte: whatever an instance does before its first
// token, the client gets the answer of another.
func TestFaultsBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	again := []tenants.Outcome{tenants.OutcomeUpstreamError, tenants.OutcomeOK}
	once := []tenants.Outcome{tenants.OutcomeOK}
	for _, f := range []fate{
		{refused, again, 1, true}, {fake.FaultReset, again, 1, true}, {fake.FaultCut, again, 1, true}, {fake.FaultStall, again, 1, false},
		{fake.FaultSlow, once, 0, true}, {fake.FaultMalformed, again, 1, true}, {fake.FaultErrorEvent, again, 1, true},
		{fake.FaultLongLine, again, 1, true}, {fake.FaultTruncated, again, 1, true}, {fake.FaultNoDone, once, 0, false},
		{fake.FaultStatus500, again, 1, true}, {fake.FaultBusy, again, 0, true}, {fake.FaultRateLimit, again, 0, true},
		{fake.FaultContentType, again, 1, true}, {fake.FaultEmpty, again, 1, true},
	} {
		for _, stream := range []bool{true, false} {
			if !stream && !f.whole {
				continue // a whole answer that hangs is the deadline's affair
			}
			t.Run(string(f.fault)+map[bool]string{true: ", streamed"}[stream], func(t *testing.T) {
				b := f.begins(t, "a", false, "a", "b")
				b.befalls("a", fake.Script{Fault: f.fault})
				b.ends(t, "a", f, stream, true)
			})
		}
	}
}

// TestFaultsAfterTheFirstByte: a stream that broke is continued where instances
// can do that, and says that it was cut where they cannot. Nothing is repeated.
func TestFaultsAfterTheFirstByte(t *testing.T) {
	t.Parallel()
	broken := []tenants.Outcome{tenants.OutcomeUpstreamTruncated}
	resumed := append(broken, tenants.OutcomeOK)
	once := []tenants.Outcome{tenants.OutcomeOK}
	for _, f := range []fate{
		{fault: fake.FaultReset, failures: 1}, {fault: fake.FaultCut, failures: 1}, {fault: fake.FaultStall, failures: 1},
		{fault: fake.FaultSlow}, {fault: fake.FaultMalformed, failures: 1}, {fault: fake.FaultErrorEvent, failures: 1},
		{fault: fake.FaultLongLine, failures: 1}, {fault: fake.FaultTruncated, failures: 1}, {fault: fake.FaultNoDone, failures: 1},
	} {
		for _, weir := range []bool{false, true} {
			t.Run(string(f.fault)+map[bool]string{true: ", resumable"}[weir], func(t *testing.T) {
				b := f.begins(t, "a", weir, "a", "b")
				b.befalls("a", fake.Script{Fault: f.fault, After: 3})
				switch {
				case f.failures == 0:
					f.rows = once
				case weir:
					f.rows = resumed
				default:
					f.rows = broken
				}
				b.ends(t, "a", f, true, weir || f.failures == 0)
			})
		}
	}
}

// TestFaultAfterTheFinishReason: a stream that breaks when all of it has come is
// whole, and nobody goes on with it.
func TestFaultAfterTheFinishReason(t *testing.T) {
	for _, weir := range []bool{false, true} {
		b := fate{}.begins(t, "a", weir, "a", "b")
		want := text(t, b.chat(t, ask1).body)
		b.cut.Store(true)
		got := b.chat(t, ask1s)
		rows := b.ledger(t)[1:]
		if len(rows) != 1 || rows[0].Outcome != tenants.OutcomeOK || rows[0].OutputTokens != 16 {
			t.Errorf("weir %v: ledger %+v", weir, rows)
		}
		if !strings.HasSuffix(got.body, "[DONE]\n\n") || text(t, got.body) != want {
			t.Errorf("weir %v: answer %s", weir, got.body)
		}
	}
}

// ends sends a request and checks the client's answer, the ledger, the breaker of
// the instance that has the fault, and that nothing is left.
func (b *bench) ends(t *testing.T, at string, f fate, stream, good bool) {
	t.Helper()
	body := ask1
	if stream {
		body = ask1su
	}
	counted := f.fault != fake.FaultNoDone || len(f.rows) > 1 // else the engine never says its usage
	got := b.chat(t, body)
	failures := b.failures(at)
	b.engines[at].SetFaults()
	want := text(t, b.chat(t, ask1).body) // by whoever: the text depends on the prompt alone
	rows := b.ledger(t)[:len(f.rows)]
	for i, o := range f.rows {
		if rows[i].Outcome != o {
			t.Errorf("ledger %v, want %v", outcomes(rows), f.rows)
		}
	}
	if failures != f.failures {
		t.Errorf("breaker counts %d, want %d", failures, f.failures)
	}
	var answered int64
	for _, r := range rows {
		answered += r.OutputTokens
	}
	switch {
	case got.status != 200:
		t.Errorf("answer %d %s", got.status, got.body)
	case !good:
		ev := events(got.body)
		last := ev[len(ev)-1]
		if shown := text(t, strings.Join(strings.SplitAfter(got.body, "\n\n")[:len(ev)-1], "")); shown == "" || !strings.HasPrefix(want, shown) || shown == want {
			t.Errorf("shown %q of %q", shown, want)
		}
		if strings.Contains(got.body, "[DONE]") || errorOf(t, last)["code"] != "upstream_truncated" || weirOf(t, last)["cloud_tokens"] != float64(answered) {
			t.Errorf("the stream ends with %s", last)
		}
	default:
		if shown := text(t, got.body); shown != want {
			t.Errorf("shown %q, want %q", shown, want)
		}
		if stream && counted {
			b.checkWholeStream(t, got.body, answered)
		}
	}
	await(t, "nothing in flight", func() bool {
		for _, e := range b.engines {
			if e.InFlight() > 0 {
				return false
			}
		}
		for _, s := range b.pool.Status() {
			if s.InFlight != (route.InFlight{}) {
				return false
			}
		}
		return b.InFlight() == 0
	})
}

// checkWholeStream checks that a stream, continued or not, looks like one.
func (b *bench) checkWholeStream(t *testing.T, body string, answered int64) {
	t.Helper()
	ev := events(body)
	last := ev[len(ev)-2]
	usage, _ := decode(t, last)["usage"].(map[string]any)
	if ev[len(ev)-1] != "[DONE]" || usage["completion_tokens"] != float64(answered) || weirOf(t, last)["cloud_tokens"] != float64(answered) ||
		usage["prompt_tokens"].(float64)+usage["completion_tokens"].(float64) != usage["total_tokens"] {
		t.Errorf("the stream ends with %s, the ledger has %d tokens", last, answered)
	}
	type head struct{ id, created any }
	ids, roles := map[head]bool{}, 0
	for _, e := range ev[:len(ev)-1] {
		event := decode(t, e)
		ids[head{event["id"], event["created"]}] = true
		roles += strings.Count(e, `"role"`)
	}
	if len(ids) != 1 || roles != 1 || strings.Contains(body, "token_ids") {
		t.Errorf("the stream has ids %v, %d roles: %s", ids, roles, body)
	}
}

// TestHandoffFaults: a decode instance that cannot fetch its KV fails, and the
// request is prefilled again.
func TestHandoffFaults(t *testing.T) {
	for _, s := range []fake.Script{{Fault: fake.FaultLease, Leg: fake.Prefill, Times: 1}, {Fault: fake.FaultTransfer, Leg: fake.Decode, Times: 1}} {
		b := newBench(t, func(o *Options) { o.Policy = preferring("d1") }, false, "p", "d1", "d2")
		b.engines["p"].SetFaults(s)
		b.engines["d1"].SetFaults(s)
		got := b.chat(t, ask1s)
		if got.status != 200 || !strings.HasSuffix(got.body, "[DONE]\n\n") {
			t.Errorf("%s: answer %d %s", s, got.status, got.body)
		}
		rows := b.ledger(t)
		if len(rows) != 2 || rows[1].Outcome != tenants.OutcomeOK || b.failures("d1") != 1 || b.engines["p"].Calls() != 2 {
			t.Errorf("%s: ledger %v, %d failures, %d prefills", s, outcomes(rows), b.failures("d1"), b.engines["p"].Calls())
		}
	}
}

// TestContinuedThroughPrefillAndDecode: prompt and shown text are prefilled by
// the prefill instance again.
func TestContinuedThroughPrefillAndDecode(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Policy = preferring("d1") }, true, "p", "d1", "d2")
	cut := fake.Script{Fault: fake.FaultCut, After: 5, Leg: fake.Decode, Times: 1}
	b.engines["d1"].SetFaults(cut)
	got := b.chat(t, strings.Replace(ask1su, `"stream":true`, `"stream":true,"max_tokens":12`, 1))
	rows := b.ledger(t)
	if n := len(rows); n < 2 || rows[n-2].Outcome != tenants.OutcomeUpstreamTruncated || rows[n-1].Outcome != tenants.OutcomeOK ||
		rows[n-2].OutputTokens != 5 || rows[n-1].OutputTokens != 7 || rows[n-2].InputTokens == 0 || rows[n-1].InputTokens != 0 {
		t.Fatalf("ledger %+v", rows)
	}
	b.checkWholeStream(t, got.body, 12)
	if got.header.Get(contract.HeaderAttempts) != "1" || weirOf(t, events(got.body)[len(events(got.body))-2])["attempts"] != 2.0 {
		t.Errorf("attempts: header %s, %s", got.header.Get(contract.HeaderAttempts), got.body)
	}
}

// TestNotContinued has requests whose streams nobody can go on with.
func TestNotContinued(t *testing.T) {
	for _, member := range []string{`"logprobs":true`, `"response_format":{"type":"json_object"}`, `"guided_regex":"a*"`} {
		b := fate{}.begins(t, "a", true, "a", "b")
		b.engines["a"].SetFaults(fake.Script{Fault: fake.FaultCut, After: 2})
		got := b.chat(t, strings.Replace(ask1s, `"stream":true`, `"stream":true,`+member, 1))
		if strings.Contains(got.body, "[DONE]") || !strings.Contains(got.body, "upstream_truncated") || len(b.ledger(t)) != 1 {
			t.Errorf("%s: %s", member, got.body)
		}
	}
}

// TestRetriesAreBounded: attempts, time and the pool's budget each end them.
func TestRetriesAreBounded(t *testing.T) {
	b := newBench(t, func(o *Options) { o.MaxAttempts = 3 }, false, "a", "b", "c", "e")
	for _, e := range b.engines {
		e.SetFaults(fake.Script{Fault: fake.FaultStatus500})
	}
	if got := b.chat(t, ask1); got.status != 502 || len(b.ledger(t)) != 3 {
		t.Errorf("answer %d after %d attempts, want 3", got.status, len(b.ledger(t)))
	}
	budget := b.budget("big")
	now := time.Now()
	for budget.Spend(now) {
	}
	budget.Add(retriesPerRequest, now)
	if budget.Spend(now) {
		t.Error("one request bought a retry")
	}
	for range 5 {
		budget.Add(retriesPerRequest, now)
	}
	if !budget.Spend(now) || budget.Spend(now) {
		t.Error("five requests did not buy one retry")
	}
	if !budget.Spend(now.Add(time.Second)) {
		t.Error("a second bought no retry")
	}
}
