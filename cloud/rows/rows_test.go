package rows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/ledger"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

// sink is a ledger that may be away and hates some rows.
type sink struct {
	mu   sync.Mutex
	away error
	bad  string
	got  map[string]tenants.UsageRecord
}

func (s *sink) Insert(_ context.Context, rows []tenants.UsageRecord) (ledger.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away != nil {
		return ledger.Result{}, s.away
	}
	for _, r := range rows {
		if r.AttemptID == s.bad {
			return ledger.Result{}, fmt.Errorf("%w: test", ledger.ErrBadRow)
		}
	}
	var res ledger.Result
	for _, r := range rows {
		if _, twice := s.got[r.AttemptID]; twice {
			res.Duplicates++
			continue
		}
		s.got[r.AttemptID] = r
		res.Inserted++
	}
	return res, nil
}

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.got)
}

func (s *sink) set(away error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func open(t *testing.T, dir string, s *sink) (*Recorder, func()) {
	t.Helper()
	r, err := Open(Options{Dir: dir, Sink: s, Every: time.Millisecond, Final: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	return r, func() { cancel(); <-done }
}

func begin(t *testing.T, r *Recorder) (rec tenants.UsageRecord, settle func()) {
	t.Helper()
	rec = tenants.UsageRecord{AttemptID: contract.NewID(), OperationID: contract.NewID(), TenantID: "t", Tier: tenants.Cloud, Model: "m",
		Outcome: tenants.OutcomeOK, UsageSource: tenants.UsageUpstream, StartedAt: time.Now().UTC()}
	e, err := r.Begin(&rec)
	if err != nil {
		t.Fatal(err)
	}
	return rec, func() {
		if err := e.Settle(&rec); err != nil {
			t.Error(err)
		}
	}
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSettledOnce: an entry is nobody's once it is settled.
func TestSettledOnce(t *testing.T) {
	s := &sink{got: map[string]tenants.UsageRecord{}}
	r, stop := open(t, t.TempDir(), s)
	defer stop()
	e := &entry{}
	rec, _ := begin(t, r)
	if err := e.Settle(&rec); !errors.Is(err, errSettled) {
		t.Errorf("an entry that was not begun: %v", err)
	}
	first, err := r.Begin(&rec)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Settle(&rec); err != nil {
		t.Fatal(err)
	}
	if err := first.Settle(&rec); !errors.Is(err, errSettled) {
		t.Errorf("settled twice: %v", err)
	}
}

// TestOutageAndRestart: rows wait on disk while the ledger is away and over a
// restart; an attempt that was never settled becomes gateway_lost; the
// successor says when the ledger has all of it.
func TestOutageAndRestart(t *testing.T) {
	dir := t.TempDir()
	s := &sink{got: map[string]tenants.UsageRecord{}, away: errors.New("away")}
	r, stop := open(t, dir, s)
	if _, open := <-r.Recovered(); open {
		t.Error("a fresh directory is not recovered")
	}
	node := r.Node()
	for range 5 {
		_, settle := begin(t, r)
		settle()
	}
	lost, _ := begin(t, r)
	if st := r.Stats(); st.Spool.Pending != 5 || st.Spool.Open != 1 || st.Lag <= 0 {
		t.Errorf("stats %+v", st)
	}
	stop()
	r, stop = open(t, dir, s)
	defer stop()
	if r.Node() != node {
		t.Errorf("node %q after %q", r.Node(), node)
	}
	select {
	case <-r.Recovered():
		t.Error("recovered while the ledger is away")
	default:
	}
	s.set(nil)
	await(t, "recovery", func() bool {
		select {
		case <-r.Recovered():
			return true
		default:
			return false
		}
	})
	if n := s.count(); n != 6 {
		t.Errorf("%d rows: want 6", n)
	}
	if got := s.got[lost.AttemptID]; got.Outcome != tenants.OutcomeGatewayLost || got.UsageSource != tenants.UsageEstimated {
		t.Errorf("the lost attempt's row %+v", got)
	}
}

// TestBadRowsDoNotHoldUpOthers: what the ledger can never hold is dropped and
// counted.
func TestBadRowsDoNotHoldUpOthers(t *testing.T) {
	s := &sink{got: map[string]tenants.UsageRecord{}, away: errors.New("away")}
	r, stop := open(t, t.TempDir(), s)
	defer stop()
	for i := range 10 {
		rec, settle := begin(t, r)
		if i == 3 {
			s.bad = rec.AttemptID
		}
		settle()
	}
	s.set(nil)
	await(t, "the other rows", func() bool { return s.count() == 9 && r.Stats().Spool.Pending == 0 })
	if st := r.Stats(); st.Lost != 1 || st.Inserted != 9 || st.Lag != 0 || st.Failures == 0 || st.Batches == 0 {
		t.Errorf("stats %+v", st)
	}
}

// TestDirectoryIsOnes: two processes do not share rows.
func TestDirectoryIsOnes(t *testing.T) {
	dir := t.TempDir()
	_, stop := open(t, dir, &sink{got: map[string]tenants.UsageRecord{}})
	defer stop()
	if _, err := Open(Options{Dir: dir, Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("the directory was opened twice")
	}
}

// TestMetrics: what the counts say is what is scraped.
func TestMetrics(t *testing.T) {
	s := &sink{got: map[string]tenants.UsageRecord{}}
	r, stop := open(t, t.TempDir(), s)
	defer stop()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(r); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, settle := begin(t, r)
		settle()
	}
	begin(t, r)
	await(t, "the rows", func() bool { return r.Stats().Inserted == 3 && r.Stats().Spool.Pending == 0 })
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{"weir_ledger_rows_total inserted": 3, "weir_ledger_rows_total duplicate": 0, "weir_ledger_waiting_rows": 0,
		"weir_ledger_open_admissions": 1, "weir_ledger_lag_seconds": 0, "weir_ledger_batches_total failed": 0} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	if got["weir_ledger_segment_bytes"] == 0 || got["weir_ledger_segments"] == 0 {
		t.Errorf("no files: %v", got)
	}
}
