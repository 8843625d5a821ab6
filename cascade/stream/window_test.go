package stream

import (
	"testing"
	"time"
)

func TestWindow(t *testing.T) {
	o := WindowOptions{Tokens: 32, Wait: 400 * time.Millisecond}
	w := NewWindow(o)
	for range o.Tokens - 1 {
		w.Token(-.01)
	}
	if w.Over(0) || !w.Over(o.Wait) {
		t.Error("the window ends too early or not in time")
	}
	w.Token(-.01)
	if !w.Over(0) {
		t.Error("the window does not end by tokens")
	}
	if NewWindow(o.ForRequest(true, 32)).Over(time.Hour) || NewWindow(o.ForRequest(false, 0)).Over(time.Hour) {
		t.Error("short and unstreamed answers are not held whole")
	}
	if (&Window{opt: WindowOptions{Tokens: 2}}).Over(time.Hour) || (&Window{opt: WindowOptions{Wait: time.Second}, tokens: 99}).Over(0) {
		t.Error("a bound that is not set ends the window")
	}
	if !NewWindow(WindowOptions{}).Over(0) {
		t.Error("a window of size zero holds")
	}
}

func TestWindowAlarm(t *testing.T) {
	o := WindowOptions{Tokens: 32, Mean: 5, SD: 2}
	good, bad := NewWindow(o), NewWindow(o)
	for i := range 30 {
		if good.Token(-.003) { // Phi 5.1
			t.Fatalf("alarm at good token %d", i)
		}
	}
	var raised []int
	for i := range 12 {
		if bad.Token(-1) {
			raised = append(raised, i)
		}
	}
	if len(raised) < 2 || raised[0] > 4 || raised[1]-raised[0] != raised[0]+1 {
		t.Errorf("alarms at bad tokens %v, want one within 4, and again", raised)
	}
}
