package moe_test

import (
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/moe"
)

func TestConformance(t *testing.T) {
	for _, name := range models.Names() {
		t.Run(name, func(t *testing.T) {
			cache := t.TempDir()
			open := func(t *testing.T, l enginetest.Limits) engine.Runner {
				o := moe.Options{Name: name, CacheDir: cache, MaxSeqs: max(l.MaxSeqs, 2), Context: 512, MaxBatch: l.MaxBatch, KVTokens: l.KVTokens}
				if l.Context > 0 {
					o.Context = l.Context
				}
				return open(t, o)
			}
			enginetest.Suite{Open: open, Exact: true}.Run(t)
		})
	}
}
