package llama_test

import (
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/models"
)

func TestConformance(t *testing.T) {
	for _, name := range models.Names() {
		t.Run(name+"/own buffers", func(t *testing.T) { conform(t, name, 0) })
	}
	// Rounding in a shared buffer moves near ties between experts, so closeness
	// says little there; TestAccuracy covers hub-cloud.
	t.Run("hub-edge/shared buffer", func(t *testing.T) { conform(t, "hub-edge", 1024) })
}

func conform(t *testing.T, name string, kvTokens int) {
	cache := t.TempDir()
	open := func(t *testing.T, l enginetest.Limits) engine.Runner {
		o := llama.Options{Name: name, CacheDir: cache, MaxSeqs: max(l.MaxSeqs, 2), Context: 512, MaxBatch: l.MaxBatch, KVTokens: kvTokens}
		if l.Context > 0 {
			o.Context = l.Context
		}
		if l.KVTokens > 0 {
			o.KVTokens = l.KVTokens
		}
		if kvTokens > 0 {
			o.KVTokens = min(o.KVTokens, max(256, o.MaxSeqs*o.Context-1))
		}
		return llamatest.Load(t, o)
	}
	// In a shared buffer a sequence's cells lie anywhere, and sums over them
	// round differently.
	enginetest.Suite{Open: open, Exact: kvTokens == 0}.Run(t)
}
