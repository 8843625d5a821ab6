package handoff

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestTransfersFade: what recent pulls tell fades and is forgotten, however many
// there were; sums since the start stay.
func TestTransfersFade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Endpoint{transfers: map[string]*transfer{}}
		for range 1000 {
			e.account("a:1", true, 100, time.Second)
		}
		e.account("a:1", false, 0, time.Second)
		if got := e.Transfers()[0]; got.Pulls != 1000 || got.Failures != 1 || got.Bytes != 100_000 || got.Seconds != 1000 ||
			got.Recent == nil || got.Recent.N < mostWeight-1e-6 || got.Recent.N > mostWeight+1e-6 || got.Recent.Bytes != 100*got.Recent.N {
			t.Errorf("at once %+v, recent %+v", got, got.Recent)
		}
		time.Sleep(halfLife)
		if n := e.Transfers()[0].Recent.N; n < mostWeight/2-1e-6 || n > mostWeight/2+1e-6 {
			t.Errorf("after its half-life %v weigh", n)
		}
		time.Sleep(8 * halfLife)
		if got := e.Transfers()[0]; got.Pulls != 1000 || got.Recent != nil {
			t.Errorf("long after %+v", got)
		}
	})
}
