package measure

import (
	"math"
	"slices"
	"testing"
)

// atThree raises an alarm at every third value above one.
type atThree int

func (d *atThree) Observe(x float64) bool {
	if x > 1 {
		*d++
	}
	return x > 1 && *d%3 == 0
}

func TestAlarmsAndDelay(t *testing.T) {
	d := new(atThree)
	if got := Alarms(d, []float64{2, 0, 2, 2, 0, 2, 2, 2}); !slices.Equal(got, []int{3, 7}) {
		t.Errorf("alarms at %v", got)
	}
	v := 0.0
	if n, ok := Delay(new(atThree), func() float64 { v++; return v }, 100); n != 4 || !ok { // 2, 3, 4
		t.Errorf("noticed after %d, %v", n, ok)
	}
	if n, ok := Delay(new(atThree), func() float64 { return 0 }, 100); n != 100 || ok {
		t.Errorf("no change noticed after %d, %v", n, ok)
	}
	m, sd := MeanSD([]float64{1, 3, 1, 3})
	near(t, "mean", m, 2, 1e-12)
	near(t, "sd", sd, 1, 1e-12)
	if m, _ := MeanSD(nil); !math.IsNaN(m) {
		t.Error("nothing has a mean")
	}
}
