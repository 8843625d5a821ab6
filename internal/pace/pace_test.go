package pace

import (
	"testing"
	"time"
)

func TestAllowance(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	a := New(2, 3)
	spend := func(want int) {
		t.Helper()
		n := 0
		for a.Spend(now) {
			n++
		}
		if n != want {
			t.Errorf("%d were spent, want %d", n, want)
		}
	}
	spend(3)
	now = now.Add(time.Second)
	spend(2)
	a.Add(.5, now)
	spend(0)
	a.Add(.5, now)
	spend(1)
	now = now.Add(-time.Minute)
	spend(0)
	now = now.Add(time.Hour)
	spend(3)
}
