package handoff

import (
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/state"
)

// maxPairs bounds the peers that are told apart in Transfers.
const maxPairs = 256

// account adds one pull from a peer; h is nil when it failed.
func (e *Endpoint) account(addr string, h *loop.Handoff, took time.Duration) {
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
	if h == nil {
		t.Failures++
		return
	}
	t.Pulls++
	t.Bytes += 4*int64(len(h.Tokens)+len(h.Logits)) + int64(len(h.KV))
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
