package poolse2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/gguf"
)

type cableCut struct {
	victim string
	dir    direction
}

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
	cuts := []cableCut{{"p1", from}, {"d1", both}, {"g1", towards}, {"p1", both}, {"p1", towards}, {"d1", from}, {"d1", towards}, {"g1", both}, {"g1", from}}
	for _, c := range cuts[:count(3, len(cuts))] {
		t.Run(fmt.Sprint(c.victim, " ", c.dir), func(t *testing.T) {
			f.judge(t, c.victim, "cut "+string(c.dir), f.cut(t, n, c.victim, c.dir, count(40, 200), tokens), want)
		})
	}
}

// cut cuts a cable under n streams, and waits until all is well again.
func (f *fleet) cut(t *testing.T, n *network, victim string, d direction, streams, tokens int) []answer {
	t.Helper()
	answers := f.crowd(t, streams, tokens, func() {
		n.cut(t, victim, d)
		time.Sleep(time.Duration(count(4, 30)) * time.Second)
		n.mend(t, victim, d)
	})
	f.recovers(t, answers)
	return answers
}

// TestNetworkCutsRealWorkers cuts the cable of workers that hand KV over by QUIC
// and are asked over HTTP/2, both with certificates.
func TestNetworkCutsRealWorkers(t *testing.T) {
	library(t)
	if !apart(t) {
		return
	}
	n := newNetwork(t)
	f := emptyFleet(t, n)
	f.workers(t, f.randomModel(t, 5e6, gguf.Q8_0), "p1", "p2", "d1", "d2")
	f.gateways(t, false)
	cuts := []cableCut{{"p1", both}, {"d1", both}, {"p1", towards}, {"p1", from}, {"d1", towards}, {"d1", from}}
	for _, c := range cuts[:count(1, len(cuts))] {
		t.Run(fmt.Sprint(c.victim, " ", c.dir), func(t *testing.T) {
			f.judge(t, c.victim, "cut "+string(c.dir), f.cut(t, n, c.victim, c.dir, count(24, 60), count(100, 400)), anyText)
		})
	}
}
