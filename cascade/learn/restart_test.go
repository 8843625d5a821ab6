package learn

import (
	"bytes"
	"testing"
)

// restarted is the table after a restart.
func restarted(t *testing.T, tb *Table) *Table {
	t.Helper()
	var buf bytes.Buffer
	if err := tb.Snapshot(&buf); err != nil {
		t.Fatal(err)
	}
	back, err := Restore(&buf, DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	return back
}

// A change of the signal is found after a restart as without one, and an alarm
// that is looked into stays so.
func TestDriftSurvivesARestart(t *testing.T) {
	tb := newTable()
	for i := range 1200 {
		tb.Pass("c", []float64{3 + float64(i%3)})
	}
	tb.Observe(Outcome{Cell: "c", X: []float64{3}, Edge: 1, Cloud: 1, CloudKnown: true, Propensity: 1})
	tb = restarted(t, tb)
	if e := tb.View("c").Error; !(e >= 0) {
		t.Errorf("calibration error %v", e)
	}
	found := 0
	for i := 1; i <= 100 && found == 0; i++ {
		if tb.Pass("c", []float64{1 + float64(i%3)}) == DriftSignal {
			found = i
		}
	}
	if found == 0 {
		t.Fatal("a change is not found for 100 values after a restart")
	}
	for range 100 {
		tb.Pass("c", []float64{1})
	}
	back := restarted(t, tb)
	v := back.View("c")
	if !v.Alarmed || v.Shadow != NewShadow().Alarm || v.Alarms != 1 || back.cells["c"].tauFactor != driftedTau {
		t.Errorf("after a restart: %+v", v)
	}
	for range 200 {
		back.Pass("c", []float64{1})
	}
	if back.Alarmed("c") {
		t.Error("the alarm begins anew")
	}
}
