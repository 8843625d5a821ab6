package pool

import (
	"errors"
	"fmt"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/worker/state"
)

// Bounds of what a message of state may say. They are far beyond what any worker
// means, and such that no product of two of them overflows.
const (
	maxCount     = 1 << 31 // tokens, blocks, requests; also bytes of a token's KV
	maxSum       = 1 << 60 // since the worker's start
	maxMillis    = 1e9     // of a step, or of a standstill
	maxMoment    = 1e36    // of Pulls: squares of bytes, over all
	maxTransfers = 1024
	maxWord      = 512 // bytes of a name, an address, an operation or a part of a fingerprint
)

// plausible refuses what no instance can mean: decisions are made with these
// numbers, and people are shown them. Its cost model is priced apart.
func plausible(m *state.Message) error {
	if !route.Role(m.Role).Valid() || m.Epoch == "" || len(m.Epoch) > maxEpoch {
		return fmt.Errorf("state message %d: role %.40q or epoch %.40q cannot be", m.Seq, m.Role, m.Epoch)
	}
	if m.Seq == 0 {
		return errors.New("state message without its number")
	}
	if len(m.Transfers) > maxTransfers {
		return fmt.Errorf("state message %d tells of %d peers", m.Seq, len(m.Transfers))
	}
	c := claims{}
	c.load(m)
	for i := range m.Requests {
		r := &m.Requests[i]
		c.words(r.Operation, string(r.Phase))
		c.upTo(maxCount, float64(r.PromptTokens), float64(r.Generated))
	}
	for i := range m.Transfers {
		c.transfer(&m.Transfers[i])
	}
	c.words(m.Name, m.Model)
	if f := m.Fingerprint; f != nil {
		c.words(f.Weights, f.Runner, f.KV)
	}
	if c.err != nil {
		return fmt.Errorf("state message %d: %w", m.Seq, c.err)
	}
	return nil
}

// priced takes a cost model that cannot be out of a message, with what it says of
// the steps: it is a file of the worker's, and all else holds without it.
func priced(m *state.Message) error {
	if m.Cost == nil {
		return nil
	}
	err := m.Cost.Check()
	if err != nil {
		m.Cost, m.ModelMS = nil, 0
	}
	return err
}

// claims keeps the first that cannot be.
type claims struct{ err error }

func (c *claims) upTo(most float64, list ...float64) {
	for _, x := range list {
		if c.err == nil && !(x >= 0 && x <= most) { // NaN too
			c.err = fmt.Errorf("the number %g cannot be", x)
		}
	}
}

func (c *claims) words(list ...string) {
	for _, s := range list {
		if c.err == nil && len(s) > maxWord {
			c.err = fmt.Errorf("a word of %d bytes: %.40q", len(s), s)
		}
	}
}

func (c *claims) load(m *state.Message) {
	for _, n := range []int{m.Running, m.Waiting, m.PrefillTokensWaiting, m.DecodeCtxTokens, m.KVBlockSize, m.KVBlocksTotal, m.KVBlocksUsed,
		m.CachedBlocks, m.Context, m.MaxSeqs, m.KVBytesPerToken} {
		c.upTo(maxCount, float64(n))
	}
	for _, n := range []uint64{m.Seq, m.PrefixQueries, m.PrefixHits, m.Steps, m.MigratedIn} {
		c.upTo(maxSum, float64(n))
	}
	c.upTo(1, m.HitRate)
	c.upTo(maxMillis, m.StepMS, m.ModelMS, m.DowntimeMS)
}

func (c *claims) transfer(t *state.Transfer) {
	c.words(t.Peer)
	c.upTo(maxSum, float64(t.Pulls), float64(t.Failures), float64(t.Bytes), t.Seconds)
	if r := t.Recent; r != nil {
		c.upTo(maxSum, r.N, r.Bytes, r.Seconds)
		c.upTo(maxMoment, r.BytesSquared, r.BytesSeconds, r.TimeSquared)
	}
}
