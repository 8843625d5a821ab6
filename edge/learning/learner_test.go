package learning

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/internal/testproc"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// heard is what the controllers were told.
type heard struct {
	mu      sync.Mutex
	losses  int
	alarms  []bool
	bounded map[string]int
}

func (h *heard) Label(_ string, loss, _ float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.losses += int(loss)
}

func (h *heard) Drifted(_ string, alarmed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.alarms = append(h.alarms, alarmed)
}

func (h *heard) Bound(cells map[string][]control.RiskItem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bounded = map[string]int{}
	for name, items := range cells {
		h.bounded[name] = len(items)
	}
}

// fixture is a learner with its log, as a node has them.
type fixture struct {
	*Learner
	heard   heard
	idle    atomic.Bool
	journal *journal.Journal
	async   *journal.Async
}

func calibration() *cascade.Calibration {
	return &cascade.Calibration{Version: 1, Fingerprint: "fp", Samples: 4000, Bias: 0, Threshold: .75, CloudAccuracy: .98,
		Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}}
}

func start(t *testing.T, dir string, cal *cascade.Calibration, l Limits) *fixture {
	t.Helper()
	f := &fixture{}
	f.idle.Store(true)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	var err error
	f.Learner, err = Open(Options{Dir: dir, Calibration: cal, Rules: &f.heard, Shadow: l, Idle: f.idle.Load, Logger: log, Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	if f.journal, err = journal.Open(dir, journal.Options{}); err != nil {
		t.Fatal(err)
	}
	f.async = journal.NewAsync(f.journal, 10_000, log, f.Apply)
	f.Attach(f.async)
	return f
}

// stop ends the log; what is queued is learned.
func (f *fixture) stop(t *testing.T) {
	t.Helper()
	f.async.Close()
	if err := f.journal.Close(); err != nil {
		t.Fatal(err)
	}
}

// serve logs n judged decisions whose edge is right with probability
// sigmoid(x-1), and labels the doubtful and a share of the others.
func (f *fixture) serve(n int, rng *rand.Rand) {
	for i := range n {
		x := 2*rng.NormFloat64() + 1
		edge := "right"
		if rng.Float64() > cascade.Sigmoid(x-1) {
			edge = "wrong"
		}
		op := fmt.Sprint("op", i, rng.Uint64())
		p := Pair{Operation: op, Cell: "chat", Model: "fp", Features: []float64{x}, Answer: edge}
		f.async.Log(journal.Record{Kind: journal.KindDecision, UnixNS: noon.UnixNano(), Request: op, Cell: "chat", Model: "fp", Judged: true, Features: p.Features})
		switch {
		case x < 1:
			f.Escalated(p, Answer{Text: "Right."}, 0)
		case rng.Float64() < .1:
			p.Propensity = .1
			f.label(p, Answer{Text: "right", CostNano: 5}, true)
		}
	}
}

// The node finds out that its calibration is too optimistic, and a restart
// finds it again: from the snapshot, from the log, and from the log alone.
func TestLearnsAndRemembers(t *testing.T) {
	dir := t.TempDir()
	f := start(t, dir, calibration(), Limits{PerHour: 60, PerDay: 1 << 40})
	f.serve(3000, rand.New(rand.NewPCG(1, 1)))
	f.stop(t)
	v := f.View("chat")
	if b := v.Calibration.Bias; math.Abs(b+1) > .35 {
		t.Errorf("bias %v, want -1", b)
	}
	if !v.Calibrated || v.Calibration.Threshold != .75 || !(v.Error < .25) || v.Grade != "usable" {
		t.Errorf("view %+v", v)
	}
	if f.heard.losses == 0 || f.heard.bounded["chat"] == 0 {
		t.Errorf("the controllers heard of %d losses and %v items", f.heard.losses, f.heard.bounded)
	}
	day, spent := f.shadows.today()
	if spent == 0 || day != noon.Unix()/86400 {
		t.Errorf("spent %d on day %d", spent, day)
	}
	if _, seq, err := journal.ReadSnapshot(dir); err != nil || seq == 0 {
		t.Fatalf("no snapshot after 3,000 decisions: %d %v", seq, err)
	}
	again := start(t, dir, calibration(), Limits{})
	again.stop(t)
	if got := again.View("chat"); math.Abs(got.Calibration.Bias-v.Calibration.Bias) > .25 || got.Grade != v.Grade {
		t.Errorf("after a restart %+v, want %+v", got.Calibration, v.Calibration)
	}
	if _, now := again.shadows.today(); now != spent {
		t.Errorf("%d spent today after the restart, %d before", now, spent)
	}
	if err := os.WriteFile(filepath.Join(dir, "state.snap"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := start(t, dir, calibration(), Limits{})
	log.stop(t)
	if got := log.View("chat"); math.Abs(got.Calibration.Bias-v.Calibration.Bias) > .25 {
		t.Errorf("from the log alone %+v", got.Calibration)
	}
	if _, now := log.shadows.today(); now != spent {
		t.Errorf("from the log alone %d were spent, want %d", now, spent)
	}
}

// A model that nobody has calibrated is believed once it has labels of its own,
// and another model starts over.
func TestUncalibratedModel(t *testing.T) {
	f := start(t, t.TempDir(), nil, Limits{})
	if f.View("chat").Calibrated {
		t.Error("the raw signal is believed")
	}
	f.serve(1500, rand.New(rand.NewPCG(2, 2)))
	f.async.Log(journal.Record{Kind: journal.KindDecision, Request: "a", Cell: "other", Model: "fp"})
	f.async.Log(journal.Record{Kind: journal.KindLabel, Request: "b", Cell: "late", Model: "older", Features: []float64{1}, Propensity: 1, Edge: new(float64)})
	f.stop(t)
	v := f.View("chat")
	if !v.Calibrated || v.Calibration.Fingerprint != "fp" || math.Abs(v.Calibration.Bias+1) > .4 {
		t.Errorf("after 1,500 answers %+v", v.Calibration)
	}
	if _, learned := f.views.Load().cells["late"]; learned && f.View("late").Effective > 0 {
		t.Error("a label of an older model was learned from")
	}
}

func TestDriftIsTold(t *testing.T) {
	f := start(t, t.TempDir(), calibration(), Limits{})
	rng := rand.New(rand.NewPCG(3, 3))
	log := func(shift float64, n int) {
		for range n {
			f.async.Log(journal.Record{Kind: journal.KindDecision, Request: "r", Cell: "chat", Model: "fp", Judged: true, Features: []float64{rng.NormFloat64() + shift}})
		}
	}
	log(0, 1100)
	log(-1, 500) // the alarm lasts 300 of them
	f.stop(t)
	if v := f.View("chat"); v.Alarms != 1 || v.Alarmed {
		t.Errorf("view %+v", v)
	}
	if len(f.heard.alarms) != 2 || !f.heard.alarms[0] || f.heard.alarms[1] {
		t.Errorf("the controllers heard %v", f.heard.alarms)
	}
}

func TestDraw(t *testing.T) {
	f := start(t, t.TempDir(), calibration(), Limits{PerHour: 600, PerDay: 1000})
	defer f.stop(t)
	none, all := 0.0, 1.0
	if p, chosen := f.Draw("op", "chat", &none, 0); p != 0 || chosen {
		t.Errorf("a tenant's 0 gives %v %v", p, chosen)
	}
	chosen := 0
	for i := range 400 {
		p, yes := f.Draw(fmt.Sprint("op", i), "chat", nil, 1)
		if p != .05 && p != 0 {
			t.Fatalf("a new cell labels %v", p)
		}
		if yes {
			chosen++
			f.shadows.release(1)
		}
	}
	if chosen < 5 || chosen > 45 {
		t.Errorf("%d of 400 are chosen at 5 %%", chosen)
	}
	if p, yes := f.Draw("op", "chat", &all, 1001); p != 0 || yes {
		t.Errorf("1001 nano-dollars of 1000: %v %v", p, yes)
	}
	if _, yes := f.Draw("op", "chat", &all, 900); !yes {
		t.Error("900 of 1000 are not promised")
	}
	if p, yes := f.Draw("op", "chat", &all, 200); p != 0 || yes {
		t.Errorf("200 beside a promise of 900: %v %v", p, yes)
	}
	f.Escalated(Pair{Cell: "chat"}, Answer{Text: "a"}, 200)
	if n := f.counts.skipped.Load(); n != 1 {
		t.Error("doubtful answers teach while kept ones cannot")
	}
	f.shadows.release(900)
	for i := 0; ; i++ {
		if _, yes := f.Draw(fmt.Sprint("more", i), "chat", &all, 0); !yes {
			if i > 100 {
				t.Errorf("%d calls in a moment at 600 an hour", i)
			}
			break
		}
	}
}

// A call waits for an idle link; its answer becomes a label; failures do not.
func TestShadowCalls(t *testing.T) {
	dir := t.TempDir()
	f := start(t, dir, calibration(), Limits{PerHour: 600, PerDay: 1000})
	f.idle.Store(false)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	all := 1.0
	called := make(chan struct{}, 2)
	pair := Pair{Operation: "op", Cell: "chat", Model: "fp", Features: []float64{2}, Answer: "a", Propensity: 1}
	for i, answer := range []error{nil, errors.New("away")} {
		if _, yes := f.Draw(fmt.Sprint(i), "chat", &all, 10); !yes {
			t.Fatal("not chosen")
		}
		f.Shadow(pair, 10, func(context.Context) (Answer, error) {
			called <- struct{}{}
			return Answer{Text: "b", CostNano: 7}, answer
		})
	}
	select {
	case <-called:
		t.Error("called while the link was busy")
	case <-time.After(3 * idlePoll):
	}
	f.idle.Store(true)
	deadline := time.Now().Add(30 * time.Second)
	for f.counts.failed.Load() == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	f.stop(t)
	if l, x := f.counts.labelled.Load(), f.counts.failed.Load(); l != 1 || x != 1 {
		t.Errorf("%d labelled, %d failed", l, x)
	}
	if _, spent := f.shadows.today(); spent != 14 || f.shadows.pending != 0 {
		t.Errorf("two calls of 7, one failed: spent %d, still promised %d", spent, f.shadows.pending)
	}
	if f.heard.losses != 1 {
		t.Errorf("a wrong kept answer is %d losses", f.heard.losses)
	}
	again := start(t, dir, calibration(), Limits{})
	again.stop(t)
	if _, spent := again.shadows.today(); spent != 14 {
		t.Errorf("after a restart %d were spent", spent)
	}
}

// While calls are dropped because the link is never idle, no answer is drawn:
// the recorded propensity would not hold. What a call cost counts before the log
// has its label.
func TestDroppedCallsEndTheDraw(t *testing.T) {
	f := start(t, t.TempDir(), calibration(), Limits{PerHour: 600, PerDay: 100})
	defer f.stop(t)
	all := 1.0
	f.idle.Store(false)
	if _, yes := f.Draw("a", "chat", &all, 10); !yes {
		t.Fatal("not chosen")
	}
	if got := f.run(t.Context(), shadow{bound: 10, until: noon}); got != "dropped" {
		t.Errorf("a call whose time was up is %s", got)
	}
	if p, yes := f.Draw("b", "chat", &all, 10); p != 0 || yes {
		t.Errorf("drawn with %v while calls are dropped", p)
	}
	f.idle.Store(true)
	if _, yes := f.Draw("c", "chat", &all, 60); !yes {
		t.Error("not drawn when the link is idle again")
	}
	f.shadows.settle(60, 60, noon)
	if p, yes := f.Draw("d", "chat", &all, 50); p != 0 || yes {
		t.Errorf("60 of 100 are spent, 50 more are drawn with %v", p)
	}
}
