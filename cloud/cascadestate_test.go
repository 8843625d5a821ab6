package cloud

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cloud/gateway"
)

func budgeted(t *testing.T) map[string]gateway.Model {
	t.Helper()
	c := cascadeConfig(Model{Cascade: []string{"small", "large"}, Policy: map[string]any{"budget": map[string]any{"per_day_nano": 1000, "right_nano": 1000}}})
	models, err := c.gatewayModels()
	if err != nil {
		t.Fatal(err)
	}
	return models
}

// What a gateway's cascades have spent and learned outlives it.
func TestCascadesOutliveARestart(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	models := budgeted(t)
	s, err := newCascadeState(dir, models, log)
	if err != nil {
		t.Fatal(err)
	}
	models["auto"].Cascade.Restore(policy.Saved{Day: 20000, Spent: 700, Lambda: 2})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.run(ctx, time.Hour) // the end alone writes it
	again := budgeted(t)
	if _, err := newCascadeState(dir, again, log); err != nil {
		t.Fatal(err)
	}
	if got := again["auto"].Cascade.Saved(); got.Spent != 700 || got.Day != 20000 || got.Lambda != 2 {
		t.Errorf("after a restart %+v", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "cascades.json"), []byte(`{"version":1,"models":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newCascadeState(dir, again, log); err == nil || !strings.Contains(err.Error(), "cascades.json") {
		t.Errorf("a damaged file: %v", err)
	}
	if s, err := newCascadeState(dir, map[string]gateway.Model{"m": {Pool: "large"}}, log); s != nil || err != nil {
		t.Errorf("without cascades: %v %v", s, err)
	}
}
