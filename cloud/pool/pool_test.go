package pool

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/testproc"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

// worker is an instance whose health a test sets.
type worker struct {
	*httptest.Server
	health atomic.Value // string
	status atomic.Int64
}

func newWorker(t *testing.T, health string) *worker {
	w := &worker{}
	w.health.Store(health)
	w.status.Store(200)
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(int(w.status.Load()))
		_, _ = io.WriteString(rw, w.health.Load().(string))
	}))
	t.Cleanup(w.Close)
	return w
}

func start(t *testing.T, members ...Member) *Pool {
	t.Helper()
	tr := &http.Transport{}
	p, err := New(Options{Members: members, Client: &http.Client{Transport: tr}, Interval: 5 * time.Millisecond, Timeout: time.Minute, Silence: time.Minute,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait(); tr.CloseIdleConnections() })
	return p
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

func ready(p *Pool, name string) bool {
	for _, s := range p.Status() {
		if s.Name == name {
			return s.Ready
		}
	}
	return false
}

var chat = Ask{RequestView: route.RequestView{Model: "m", PromptBytes: 100}, Operation: "op"}

func TestPoolFollowsHealth(t *testing.T) {
	w := newWorker(t, `{"status":"ok","epoch":"e1","role":"decode","model":"m","context":2048,"max_seqs":8,"fingerprint":{"a":1}}`)
	p := start(t, Member{Name: "d", URL: w.URL, Model: "m"})
	await(t, "ready", func() bool { return ready(p, "d") })
	s := p.Status()[0]
	if s.Role != route.Decode || s.Epoch != "e1" || s.Context != 2048 || s.MaxSeqs != 8 || s.AgeMs < 0 {
		t.Errorf("status %+v", s)
	}
	w.health.Store(`{"status":"draining"}`)
	w.status.Store(503)
	await(t, "taken out", func() bool { return !ready(p, "d") })
	if got := p.Status()[0].Problem; !strings.Contains(got, "draining") {
		t.Errorf("problem %q does not say draining", got)
	}
	if _, d := p.Select(route.LeastInFlight{}, route.Arrival, chat, 1); d.Action != (route.Reject{Cause: route.ReasonNoneReady}) {
		t.Errorf("selected an instance that drains: %+v", d)
	}
}

func TestLedgerCountsAtSelection(t *testing.T) {
	w := newWorker(t, `{"status":"ok"}`)
	p := start(t, Member{Name: "a", URL: w.URL, Model: "m"}, Member{Name: "b", URL: w.URL, Model: "m"})
	await(t, "both ready", func() bool { return ready(p, "a") && ready(p, "b") })
	var legs []Selection
	n := map[string]int{}
	for seed := range uint64(10) {
		s, _ := p.Select(route.LeastInFlight{}, route.Arrival, chat, seed)
		n[s.Decode.ID]++
		legs = append(legs, s)
	}
	if n["a"] != 5 || n["b"] != 5 {
		t.Errorf("ten selections went %v, want five each", n)
	}
	legs[0].Decode.Prefilled()
	for _, s := range legs {
		s.Release()
		s.Release()
	}
	for _, s := range p.Status() {
		if s.InFlight != (route.InFlight{}) {
			t.Errorf("%s still has %+v", s.Name, s.InFlight)
		}
	}
}

func TestNewEpochVoidsLedger(t *testing.T) {
	w := newWorker(t, `{"status":"ok","epoch":"e1"}`)
	p := start(t, Member{Name: "a", URL: w.URL, Model: "m"})
	await(t, "ready", func() bool { return ready(p, "a") })
	old, _ := p.Select(route.LeastInFlight{}, route.Arrival, chat, 1)
	w.health.Store(`{"status":"ok","epoch":"e2"}`)
	await(t, "new epoch", func() bool { return p.Status()[0].Epoch == "e2" })
	if got := p.Status()[0].InFlight; got != (route.InFlight{}) {
		t.Errorf("ledger of the old process survived: %+v", got)
	}
	fresh, _ := p.Select(route.LeastInFlight{}, route.Arrival, chat, 1)
	old.Decode.Bad("old news", true)
	old.Release()
	if got := p.Status()[0]; got.InFlight.Requests != 1 || !got.Ready || got.Suspect || got.Failures != 0 {
		t.Errorf("an old leg changed the new process's state: %+v", got)
	}
	fresh.Release()
}

// still is a pool that nobody probes and whose clock stands still.
func still(t *testing.T, members ...Member) *Pool {
	t.Helper()
	p, err := New(Options{Members: members, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	p.now = func() time.Duration { return time.Second }
	for _, in := range p.inst {
		p.note(in, health{}, nil)
	}
	return p
}

// later moves the pool's clock on.
func later(p *Pool, d time.Duration) {
	now := p.now
	p.now = func() time.Duration { return now() + d }
}

func status(p *Pool, name string) Status {
	for _, s := range p.Status() {
		if s.Name == name {
			return s
		}
	}
	return Status{}
}

func TestSuspectUntilProbed(t *testing.T) {
	p := still(t, Member{Name: "a", URL: "http://h", Model: "m"}, Member{Name: "b", URL: "http://h", Model: "m"})
	s, _ := p.Select(route.LeastInFlight{}, route.Arrival, chat, 1)
	bad, in := s.Decode.ID, s.Decode.in
	s.Decode.Bad("broke off", true)
	s.Release()
	if got := status(p, bad); !got.Suspect || !got.Ready || got.Failures != 1 || got.Last.Message != "broke off" || len(in.kick) != 1 {
		t.Errorf("after a failure %+v, and %d probes asked for", got, len(in.kick))
	}
	for seed := range uint64(8) {
		if s, _ := p.Select(route.LeastInFlight{}, route.Arrival, chat, seed); s.Decode.ID == bad {
			t.Error("a suspect was chosen before a healthy instance")
		}
	}
	p.note(in, health{}, nil)
	if status(p, bad).Suspect {
		t.Error("a good probe did not clear the suspicion")
	}
}

func TestLateProbes(t *testing.T) {
	p := still(t, Member{Name: "a", URL: "http://h", Model: "m"}, Member{Name: "b", URL: "http://h", Model: "m"})
	a, b := p.inst[0], p.inst[1]
	late := &probeError{"timeout", false}
	for i := range missesAllowed - 1 {
		p.note(a, health{}, late)
		if got := status(p, "a"); !got.Ready || !got.Suspect {
			t.Fatalf("after %d late probes %+v, want a suspect", i+1, got)
		}
	}
	p.note(a, health{}, late)
	if status(p, "a").Ready {
		t.Errorf("still ready after %d late probes", missesAllowed)
	}
	for range missesAllowed {
		p.note(b, health{}, late)
	}
	if got := status(p, "b"); !got.Ready || !got.Suspect {
		t.Errorf("the last of the pool was taken out by soft evidence: %+v", got)
	}
	p.note(b, health{}, &probeError{"refused", true})
	if status(p, "b").Ready {
		t.Error("a refused connection left it in")
	}
}

func TestBreakerAndSlowStart(t *testing.T) {
	p := still(t, Member{Name: "a", URL: "http://h", Model: "m"}, Member{Name: "b", URL: "http://h", Model: "m"})
	leg := func() *Leg {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.openLocked("a", &chat, 1)
	}
	for range 3 {
		l := leg()
		l.Bad("500", false)
		l.Release()
	}
	if got := status(p, "a"); got.Ready || got.Breaker != "open" || got.Failures != 3 {
		t.Fatalf("after three failures %+v", got)
	}
	later(p, 2*time.Second) // the pause is over
	if got := status(p, "a"); !got.Ready || got.Breaker != "half_open" || got.Untried < 1000 {
		t.Fatalf("after the pause %+v", got)
	}
	trial := leg()
	if got := status(p, "a"); got.Ready || got.Breaker != "half_open" || got.Untried != 0 {
		t.Errorf("during the trial %+v", got)
	}
	trial.Release() // without a verdict
	if got := status(p, "a"); got.Breaker != "open" {
		t.Errorf("a trial without a verdict: %+v", got)
	}
	later(p, 4*time.Second)
	trial = leg()
	trial.Good()
	trial.Release()
	if got := status(p, "a"); !got.Ready || got.Breaker != "closed" || got.Untried != 0 || got.Share > .5 {
		t.Errorf("after a good trial %+v, want a slow start", got)
	}
	later(p, slowStart)
	if got := status(p, "a"); got.Share != 1 {
		t.Errorf("after the slow start %+v", got)
	}
}

// TestWouldIsNoTrial: to ask whether there is an instance changes nothing of it.
func TestWouldIsNoTrial(t *testing.T) {
	p := still(t, Member{Name: "a", URL: "http://h", Model: "m"})
	for range 3 {
		p.inst[0].vitals.failed("500", false, p.now())
	}
	later(p, 2*time.Second) // the pause is over
	before := status(p, "a")
	if before.Breaker != "half_open" || !p.Would(route.LeastInFlight{}, chat, 1) {
		t.Fatalf("no instance for a trial: %+v", before)
	}
	if got := status(p, "a"); got.Breaker != "half_open" || got.Untried != before.Untried || got.InFlight != (route.InFlight{}) {
		t.Errorf("%+v, before %+v", got, before)
	}
	p.note(p.inst[0], health{}, &probeError{"refused", true})
	if p.Would(route.LeastInFlight{}, chat, 1) {
		t.Error("an instance that is gone would take the request")
	}
}

// TestBreakerBesideASuspect: an instance whose breaker is open stays a suspect
// where the others are suspects, too: they may be dead.
func TestBreakerBesideASuspect(t *testing.T) {
	p := still(t, Member{Name: "a", URL: "http://h", Model: "m"}, Member{Name: "b", URL: "http://h", Model: "m"})
	a, b := p.inst[0], p.inst[1]
	for range 3 {
		b.vitals.failed("stall", true, p.now())
	}
	if status(p, "b").Ready {
		t.Fatal("in although its breaker is open and another is well")
	}
	p.note(a, health{}, &probeError{"timeout", false})
	if got := status(p, "b"); !got.Ready || !got.Suspect {
		t.Errorf("the only one beside a suspect: %+v", got)
	}
	p.note(a, health{}, nil)
	if status(p, "b").Ready {
		t.Error("in although the other is well again")
	}
}

// TestTrialEndsWithItsProcess: a trial that hangs does not keep out the process
// that took the place of the one it ran at.
func TestTrialEndsWithItsProcess(t *testing.T) {
	p := still(t, Member{Name: "a", URL: "http://h", Model: "m"}, Member{Name: "b", URL: "http://h", Model: "m"})
	in := p.inst[0]
	in.vitals.failed("500", false, p.now())
	in.vitals.failed("500", false, p.now())
	in.vitals.failed("500", false, p.now())
	later(p, 2*time.Second) // the pause is over
	p.mu.Lock()
	trial := p.openLocked("a", &chat, 1)
	p.mu.Unlock()
	if got := status(p, "a"); !trial.trial || got.Ready {
		t.Fatalf("during the trial %+v", got)
	}
	p.note(in, health{Epoch: "new"}, nil)
	trial.Bad("reset", false)
	trial.Release()
	if got := status(p, "a"); !got.Ready || got.Breaker != "closed" {
		t.Errorf("the new process: %+v", got)
	}
}

func TestNewRefuses(t *testing.T) {
	ok := Member{Name: "a", URL: "http://h", Model: "m"}
	tests := map[string][]Member{
		"twice":     {ok, ok},
		"no name":   {{URL: "http://h", Model: "m"}},
		"url":       {{Name: "a", URL: "h:1", Model: "m"}},
		"without":   {{Name: "a", URL: "http://h:8000/v1/", Model: "m"}},
		"role":      {{Name: "a", URL: "http://h", Model: "m", Role: "both"}},
		"has no mo": {{Name: "a", URL: "http://h"}},
	}
	for want, members := range tests {
		if _, err := New(Options{Members: members}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v): %v, want it to say %q", members, err, want)
		}
	}
}

func TestReadHealth(t *testing.T) {
	tests := []struct {
		name   string
		status int
		body   string
		bad    string
	}{
		{"vLLM", 200, "", ""},
		{"llama-server", 200, `{"status":"ok"}`, ""},
		{"Ollama", 200, "Ollama is running", ""},
		{"loading", 503, `{"error":{"message":"Loading model"}}`, "503"},
		{"other model", 200, `{"model":"x"}`, "serves model"},
		{"role", 200, `{"role":"king"}`, "unknown role"},
		{"negative", 200, `{"context":-1}`, "impossible"},
	}
	for _, tt := range tests {
		_, err := readHealth(tt.status, []byte(tt.body), "m")
		if (err == nil) != (tt.bad == "") || err != nil && !strings.Contains(err.Error(), tt.bad) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.bad)
		}
	}
}

func FuzzReadHealth(f *testing.F) {
	f.Add(200, []byte(`{"status":"ok","epoch":"e","role":"mixed","fingerprint":{"a":1}}`))
	f.Add(503, []byte(`null`))
	f.Add(200, []byte(`{"context":1e99}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		h, err := readHealth(status, body, "m")
		if err == nil && (h.Role != "" && !h.Role.Valid() || h.Context < 0) {
			t.Errorf("accepted %+v", h)
		}
		if name := kvFormat(h.Fingerprint); name != "" && !json.Valid(h.Fingerprint) {
			t.Errorf("named an invalid fingerprint %q", name)
		}
	})
}

func TestSelectConcurrently(t *testing.T) {
	w := newWorker(t, `{"status":"ok"}`)
	p := start(t, Member{Name: "a", URL: w.URL, Model: "m", Role: route.Prefill}, Member{Name: "b", URL: w.URL, Model: "m", Role: route.Decode})
	await(t, "both ready", func() bool { return ready(p, "a") && ready(p, "b") })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for seed := range uint64(200) {
				s, _ := p.Select(route.LeastInFlight{}, route.Arrival, chat, seed)
				s.Prefill.Prefilled()
				s.Release()
			}
		})
	}
	wg.Wait()
	for _, s := range p.Status() {
		if s.InFlight != (route.InFlight{}) {
			t.Errorf("%s still has %+v", s.Name, s.InFlight)
		}
	}
}
