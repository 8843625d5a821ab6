package roles

import (
	"testing"
	"time"
)

// step is a number of looks at 250 ms from one another.
type step struct {
	n          int
	own, peers float64
	want       bool // at the last of them
}

func TestSlowness(t *testing.T) {
	tests := []struct {
		name  string
		steps []step
	}{
		{"as fast as its peers", []step{{50, 1, 1, false}}},
		{"a whole pool that slows", []step{{50, 9, 8, false}}},
		{"a model that is off", []step{{50, 4, 1.5, false}}},
		{"slower than the model only", []step{{50, 2.9, .5, false}}},
		{"nobody to compare with", []step{{50, 9, 0, false}}},
		{"a few slow looks", []step{{3, 9, 1, false}, {2, 1, 1, false}, {3, 9, 1, false}, {2, 1, 1, false}, {3, 9, 1, false}}},
		{"most looks are slow", []step{{7, 9, 1, false}, {1, 9, 1, true}}},
		{"slow with a good look", []step{{4, 9, 1, false}, {1, 1, 1, false}, {4, 9, 1, true}}},
		{"between the bounds it stays what it is", []step{{20, 9, 1, true}, {30, 2.5, 1, true}, {11, 2.5, 1, false}}},
		{"well again", []step{{20, 9, 1, true}, {7, 1, 1, true}, {1, 1, 1, false}}},
		{"idle for its rest", []step{{20, 9, 1, true}, {39, 0, 1, true}, {1, 0, 1, false}}},
		{"slow for as long as it is", []step{{200, 9, 1, true}}},
		{"a relapse doubles the rest", []step{{20, 9, 1, true}, {40, 0, 1, false}, {8, 9, 1, true}, {79, 0, 1, true}, {1, 0, 1, false}}},
		{"a relapse long after", []step{{20, 9, 1, true}, {40, 0, 1, false}, {1300, 1, 1, false}, {10, 9, 1, true}, {40, 0, 1, false}}},
	}
	for _, tt := range tests {
		var s Slowness
		now := time.Hour
		for i, st := range tt.steps {
			got := false
			for range st.n {
				now += 250 * ms
				got = s.Look(now, st.own, st.peers)
			}
			if got != st.want {
				t.Errorf("%s: slow %v after part %d", tt.name, got, i)
			}
		}
	}
}

func TestMiddle(t *testing.T) {
	for want, of := range map[float64][]float64{0: nil, 3: {3}, 2.5: {4, 1}, 2: {9, 2, 1}} {
		if got := Middle(of); got != want {
			t.Errorf("%v: %v, want %v", of, got, want)
		}
	}
}
