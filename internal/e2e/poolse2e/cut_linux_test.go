package poolse2e

import (
	"fmt"
	"testing"
	"time"
)

// TestNetworkCuts cuts the network cable of each kind of process under many
// streams: both ways, and one way, which leaves the other end to believe that
// it is heard.
func TestNetworkCuts(t *testing.T) {
	if !apart(t) {
		return
	}
	n := newNetwork(t)
	f := newFleet(t, n, 25*time.Millisecond, false)
	want := f.undisturbed(t)
	cuts := []struct {
		victim string
		dir    direction
	}{{"p1", from}, {"d1", both}, {"g1", towards}, {"p1", both}, {"p1", towards}, {"d1", from}, {"d1", towards}, {"g1", both}, {"g1", from}}
	for _, c := range cuts[:count(3, len(cuts))] {
		t.Run(fmt.Sprint(c.victim, " ", c.dir), func(t *testing.T) {
			answers := f.crowd(t, count(40, 200), func() {
				n.cut(t, c.victim, c.dir)
				time.Sleep(time.Duration(count(4, 30)) * time.Second)
				n.mend(t, c.victim, c.dir)
			})
			f.judge(t, c.victim, "cut "+string(c.dir), answers, want)
			f.recovers(t, answers)
		})
	}
}
