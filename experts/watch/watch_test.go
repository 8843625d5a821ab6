package watch

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/experts/rebalance"
)

// TestMain turns the test binary into the hook when the environment says so:
// it asks the fake replica to restart.
func TestMain(m *testing.M) {
	if os.Getenv("WEIR_TEST_HOOK") != "1" {
		os.Exit(m.Run())
	}
	n := len(os.Args)
	resp, err := http.Post(os.Args[n-2]+"/restart?plan="+url.QueryEscape(os.Args[n-1]), "", nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		os.Stderr.WriteString("restart refused\n")
		os.Exit(1)
	}
	os.Exit(0)
}

// Two hot experts that a trivial placement puts on one device.
var skewed = [][]int32{{0, 0, 0, 0, 0, 0, 0, 0}, {4000, 4000, 100, 100, 100, 100, 100, 100}}

type fixture struct {
	fakes   []*fakeSGLang
	options Options
	log     []string // restarts, in order
	out     bytes.Buffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	t.Setenv("WEIR_TEST_HOOK", "1")
	x := &fixture{}
	for _, name := range []string{"a", "b"} {
		f, r := newFake(t, name, skewed, &x.log)
		x.fakes = append(x.fakes, f)
		x.options.Replicas = append(x.options.Replicas, r)
	}
	c := rebalance.Default()
	c.Patience, c.Moves = 2, -1
	x.options.Config, x.options.TopK = c, 2
	x.options.Fleet = func(e int) (plan.Fleet, error) { return plan.Even(e, 4, 4) }
	x.options.PlanFile = filepath.Join(t.TempDir(), "plan.json")
	x.options.Hook = []string{os.Args[0]}
	x.options.Poll = time.Millisecond
	x.options.Log = slog.New(slog.NewTextHandler(&x.out, nil))
	return x
}

func (x *fixture) watcher(t *testing.T) *Watcher {
	t.Helper()
	w, err := New(x.options)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestRollsRestarts(t *testing.T) {
	x := newFixture(t)
	w := x.watcher(t)
	rep, err := w.Cycle(t.Context())
	if err != nil || rep.Decision.Reason != rebalance.Waiting || rep.Reported != 0.5 || rep.Window.Demand[1][0] != 8000 {
		t.Fatalf("first cycle: %+v, %v", rep, err)
	}
	rep, err = w.Cycle(t.Context())
	if err != nil || rep.Decision.Action != rebalance.Move {
		t.Fatalf("second cycle: %+v, %v\n%s", rep.Decision, err, x.out.String())
	}
	if !reflect.DeepEqual(x.log, []string{"a", "b"}) {
		t.Errorf("restarts %v, want a then b", x.log)
	}
	for _, f := range x.fakes {
		rows := f.running["physical_to_logical_map"]
		if len(rows) != 2 || len(rows[1]) != 12 || f.sick != 0 {
			t.Fatalf("replica %s runs %v, %d probes from healthy", f.name, f.running, f.sick)
		}
		p := plan.Placement{Experts: 8, Fleet: plan.Uniform(4, 3), Layers: rows}
		load := make([]float64, 8)
		for e, c := range skewed[1] {
			load[e] = float64(c)
		}
		if err := p.Validate(); err != nil || p.Imbalance(1, load) > 1.1 {
			t.Errorf("replica %s: imbalance %v, %v", f.name, p.Imbalance(1, load), err)
		}
	}
	rep, err = w.Cycle(t.Context())
	if err != nil || rep.Decision.Reason != rebalance.Verifying || len(x.log) != 2 {
		t.Errorf("third cycle: %+v, %v", rep.Decision, err)
	}
}

func TestFailedHookRestores(t *testing.T) {
	x := newFixture(t)
	x.fakes[1].refuse = 1
	old := []byte(`{"physical_to_logical_map":[[0,1,2,3,4,5,6,7,0,1,2,3],[0,1,2,3,4,5,6,7,0,1,2,3]]}`)
	if err := os.WriteFile(x.options.PlanFile, old, 0o600); err != nil {
		t.Fatal(err)
	}
	w := x.watcher(t)
	if _, err := w.Cycle(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := w.Cycle(t.Context())
	if !errors.Is(err, ErrHook) || !errors.Is(err, rebalance.ErrMove) || !strings.Contains(err.Error(), "restart refused") {
		t.Fatalf("error %v, want ErrHook with the hook's own words", err)
	}
	if !reflect.DeepEqual(x.log, []string{"a", "b", "a", "b"}) {
		t.Errorf("restarts %v, want both back on the old plan", x.log)
	}
	if now, _ := os.ReadFile(x.options.PlanFile); !bytes.Equal(now, old) {
		t.Errorf("plan file is %s", now)
	}
	if got := x.fakes[0].running["physical_to_logical_map"]; len(got) != 2 || got[1][8] != 0 {
		t.Errorf("replica a runs %v", got)
	}
	rep, err := w.Cycle(t.Context())
	if err != nil || rep.Decision.Reason != rebalance.CoolingDown {
		t.Errorf("after the failure: %+v, %v", rep.Decision, err)
	}
}

func TestAuditChangesNothing(t *testing.T) {
	x := newFixture(t)
	x.options.Audit, x.options.Hook = true, nil
	w := x.watcher(t)
	for i := range 4 {
		rep, err := w.Cycle(t.Context())
		if err != nil || i > 0 && rep.Decision.Action != rebalance.Move {
			t.Fatalf("cycle %d: %+v, %v", i, rep.Decision, err)
		}
	}
	if _, err := os.Stat(x.options.PlanFile); !os.IsNotExist(err) || len(x.log) != 0 {
		t.Errorf("auditing wrote a plan (%v) or restarted %v", err, x.log)
	}
	if !strings.Contains(x.out.String(), "would=move") || !strings.Contains(x.out.String(), "reported_balancedness=0.5") {
		t.Errorf("log says\n%s", x.out.String())
	}
}

func TestReplicaErrors(t *testing.T) {
	tests := []struct {
		name   string
		set    func(*fixture)
		want   error
		within time.Duration
	}{
		{"no recorder mode", func(x *fixture) { x.fakes[1].noRecord = true }, ErrReplica, time.Minute},
		{"wrong key", func(x *fixture) { x.fakes[0].key, x.options.Key = "right", "SECRET-wrong" }, ErrReplica, time.Minute},
		{"other model", func(x *fixture) { x.fakes[0].counts = [][]int32{{1, 2}} }, nil, time.Minute},
		{"no dump", func(x *fixture) { x.fakes[0].noDump = true }, ErrDump, 5 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := newFixture(t)
			tt.set(x)
			ctx, cancel := context.WithTimeout(t.Context(), tt.within)
			defer cancel()
			_, err := x.watcher(t).Cycle(ctx)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if strings.Contains(err.Error()+x.out.String(), "SECRET") {
				t.Error("the key is in a message")
			}
		})
	}
	x := newFixture(t)
	x.fakes[0].key, x.fakes[1].key, x.options.Key = "right", "right", "right"
	if _, err := x.watcher(t).Cycle(t.Context()); err != nil {
		t.Errorf("with the key: %v", err)
	}
}

func TestRunStopsRecorderAtEnd(t *testing.T) {
	x := newFixture(t)
	x.options.Window = time.Hour
	w := x.watcher(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	deadline := time.Now().Add(time.Minute)
	for !x.fakes[0].isRecording() || !x.fakes[1].isRecording() {
		if time.Now().After(deadline) {
			t.Fatal("no recording starts")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
	if x.fakes[0].isRecording() || x.fakes[1].isRecording() {
		t.Error("a recorder is left running")
	}
}

func (f *fakeSGLang) isRecording() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.recording
}

func TestOptions(t *testing.T) {
	for name, set := range map[string]func(*Options){
		"no replicas":  func(o *Options) { o.Replicas = nil },
		"no hook":      func(o *Options) { o.Hook = nil },
		"bad URL":      func(o *Options) { o.Replicas[0].URL = "file:///etc/passwd" },
		"no such dir":  func(o *Options) { o.Replicas[0].Dir = "/nonexistent" },
		"no plan file": func(o *Options) { o.PlanFile = "" },
	} {
		x := newFixture(t)
		set(&x.options)
		if _, err := New(x.options); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
