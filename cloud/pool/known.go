package pool

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/state"
	"github.com/weirhq/weir/internal/prefix"
)

// errGap says that messages were lost: the stream must be opened anew.
var errGap = errors.New("a message of the instance's state is missing")

// known is what an instance has said of itself on its stream of state. The zero
// value has heard nothing.
type known struct {
	streams bool // the instance has a stream
	seq     uint64
	at      time.Duration // of the newest message
	load    route.Load
	hitRate float64
	steps   uint64
	stepMs  float64
	modelMs float64 // what its cost model says of the same steps; 0 is unknown
	moved   []state.Transfer
	copies  map[string]route.Copy // from each address, and from all ("")
	cost    *cost.Model
	absurd  bool // it has told a cost model that cannot be
	// draining and failing are its own words; decoding are the requests that have a
	// token, by operation.
	draining bool
	failing  string
	decoding map[string]state.Request
}

// apply takes one message, which must be plausible, heard at now. Its keys go
// to x.
func (k *known) apply(m *state.Message, x *index, now time.Duration) error {
	if !m.Full && (k.seq == 0 || m.Seq != k.seq+1) {
		return fmt.Errorf("%w: number %d after %d", errGap, m.Seq, k.seq)
	}
	if m.Full {
		*x = index{}
	}
	for _, list := range []struct {
		keys []string
		take func(prefix.Key)
	}{{m.KeysEvicted, x.evict}, {m.KeysAdded, x.add}} {
		for _, text := range list.keys {
			key, err := prefix.ParseKey(text)
			if err != nil {
				return fmt.Errorf("state message %d: %w", m.Seq, err)
			}
			list.take(key)
		}
	}
	k.streams, k.seq, k.at = true, m.Seq, now
	k.draining, k.decoding = m.Health == healthDraining, map[string]state.Request{}
	for _, r := range m.Requests {
		if r.Phase == state.Decode {
			k.decoding[r.Operation] = r
		}
	}
	k.failing = clip(m.Failing)
	k.hitRate, k.steps, k.stepMs, k.modelMs = m.HitRate, m.Steps, m.StepMS, m.ModelMS
	k.moved, k.copies = m.Transfers, copies(m.Transfers, m.KVBytesPerToken)
	if m.Cost != nil {
		k.cost = m.Cost
	}
	k.load = route.Load{At: now, Running: m.Running, Waiting: m.Waiting, PrefillTokens: m.PrefillTokensWaiting,
		DecodeContext: m.DecodeCtxTokens, KVTokens: m.KVBlocksTotal * m.KVBlockSize,
		KVFree: min(max(m.KVBlocksTotal-m.KVBlocksUsed+m.CachedBlocks, 0), m.KVBlocksTotal) * m.KVBlockSize}
	return nil
}

// mispriced forgets the cost model, since the newest cannot be, and reports whether
// this is the first such.
func (k *known) mispriced() (first bool) {
	first = !k.absurd
	k.cost, k.absurd = nil, true
	return first
}

// clip bounds an instance's words.
func clip(why string) string {
	const most = 200 // bytes
	return strings.ToValidUTF8(why[:min(len(why), most)], "")
}

// predictor is a worker's cost model as policies take it.
type predictor struct{ *cost.Model }

// StepMs implements route.Cost.
func (p predictor) StepMs(decodes, prefill, context, pairs int) float64 {
	return p.Milliseconds(cost.Step{Decodes: decodes, Prefill: prefill, Context: context, Pairs: pairs})
}
