package handoff

import (
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/engine/worker/state"
)

// maxPairs bounds the peers that are told apart in Transfers.
const maxPairs = 256

// account adds one pull of n bytes from a peer.
func (e *Endpoint) account(addr string, good bool, n int64, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.transfers[addr]
	if t == nil {
		if len(e.transfers) >= maxPairs {
			return
		}
		t = &state.Transfer{Peer: addr}
		e.transfers[addr] = t
	}
	if !good {
		t.Failures++
		return
	}
	t.Pulls++
	t.Bytes += n
	t.Seconds += took.Seconds()
}

// Transfers tells what has been pulled from each peer, by address.
func (e *Endpoint) Transfers() []state.Transfer {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]state.Transfer, 0, len(e.transfers))
	for _, t := range e.transfers {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b state.Transfer) int { return strings.Compare(a.Peer, b.Peer) })
	return out
}
