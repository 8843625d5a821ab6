package handoff

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/engine/worker/state"
)

// maxPairs bounds the peers that are told apart in Transfers.
const maxPairs = 256

// How long pulls tell what the next one takes: they weigh half as much after
// halfLife, and nothing when less than leastWeight of one is left. So a figure
// that keeps gateways from asking for pulls does not hold for good.
const (
	halfLife    = 30 * time.Second
	leastWeight = 1. / 8
	mostWeight  = 32 // of all: more would last too long
)

// transfer is what was pulled from a peer. Its recent pulls weigh as at a time.
type transfer struct {
	sum    state.Transfer
	recent state.Pulls
	at     time.Time
}

// fade lets the recent pulls weigh as at now.
func (t *transfer) fade(now time.Time) {
	t.recent.Fade(math.Exp2(-now.Sub(t.at).Seconds() / halfLife.Seconds()))
	t.at = now
}

// account adds one pull of n bytes from a peer, which took so long.
func (e *Endpoint) account(addr string, good bool, n int64, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.transfers[addr]
	if t == nil {
		if len(e.transfers) >= maxPairs {
			return
		}
		t = &transfer{sum: state.Transfer{Peer: addr}}
		e.transfers[addr] = t
	}
	if !good {
		t.sum.Failures++
		return
	}
	t.sum.Pulls++
	t.sum.Bytes += n
	t.sum.Seconds += took.Seconds()
	t.fade(time.Now())
	t.recent.Note(float64(n), took.Seconds())
	t.recent.Fade(min(1, mostWeight/t.recent.N))
}

// Transfers tells what has been pulled from each peer, by address.
func (e *Endpoint) Transfers() []state.Transfer {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	out := make([]state.Transfer, 0, len(e.transfers))
	for _, t := range e.transfers {
		sum := t.sum
		if t.fade(now); t.recent.N >= leastWeight {
			recent := t.recent
			sum.Recent = &recent
		}
		out = append(out, sum)
	}
	slices.SortFunc(out, func(a, b state.Transfer) int { return strings.Compare(a.Peer, b.Peer) })
	return out
}
