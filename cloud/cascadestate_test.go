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
	c := cascadeConfig(Model{Cascade: []Pools{{"small"}, {"large"}}, Policy: map[string]any{"budget": map[string]any{"per_day_nano": 1000, "right_nano": 1000}}})
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

// The file of another release does not keep a gateway from starting: its cascades
// begin anew, and spend nothing more today.
func TestCascadesOfAnotherRelease(t *testing.T) {
	dir, models := t.TempDir(), budgeted(t)
	path := filepath.Join(dir, "cascades.json")
	if err := os.WriteFile(path, []byte(`{"version":2,"models":["of","another","shape"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	s, err := newCascadeState(dir, models, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if got := models["auto"].Cascade.Saved(); got.Spent != 1000 || got.Day != time.Now().Unix()/86400 || !strings.Contains(log.String(), "version=2") {
		t.Errorf("%+v, log %s", got, &log)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.run(ctx, time.Hour)
	again := budgeted(t)
	if _, err := newCascadeState(dir, again, slog.New(slog.DiscardHandler)); err != nil || again["auto"].Cascade.Saved().Spent != 1000 {
		t.Errorf("after a restart: %v", err)
	}
}
