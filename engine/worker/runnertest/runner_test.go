package runnertest

import (
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
)

// TestConformance: what drives a runner is tested on this one, so it must keep
// the contract itself.
func TestConformance(t *testing.T) {
	enginetest.Suite{Exact: true, Open: func(t *testing.T, l enginetest.Limits) engine.Runner {
		return New(Options{MaxSeqs: l.MaxSeqs, Context: l.Context, MaxBatch: l.MaxBatch, KVTokens: l.KVTokens})
	}}.Run(t)
}
