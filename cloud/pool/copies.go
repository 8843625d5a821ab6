package pool

import (
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/worker/state"
)

// copies are how long KV of kvBytes a token has taken lately from each peer, and
// from all (""); nil where that is not known.
func copies(moved []state.Transfer, kvBytes int) map[string]route.Copy {
	if kvBytes <= 0 {
		return nil
	}
	var all state.Pulls
	out := map[string]route.Copy{}
	for _, t := range moved {
		if r := t.Recent; r != nil && r.N > 0 && r.Bytes > 0 && r.Seconds > 0 {
			all.Add(*r)
			out[t.Peer] = copied(r, float64(kvBytes))
		}
	}
	if len(out) == 0 {
		return nil
	}
	out[""] = copied(&all, float64(kvBytes))
	return out
}

func copied(r *state.Pulls, kvBytes float64) route.Copy {
	const ms = 1000
	least, most := r.Slope()
	return route.Copy{Tokens: r.Bytes / r.N / kvBytes, Ms: ms * r.Seconds / r.N, Least: ms * least * kvBytes, Most: ms * most * kvBytes}
}

// copiesFrom is copies by the peers' names.
func (k *known) copiesFrom(peers map[string]string) map[string]route.Copy {
	out := map[string]route.Copy{}
	for addr, c := range k.copies {
		if name := peers[addr]; name != "" || addr == "" {
			out[name] = c
		}
	}
	return out
}
