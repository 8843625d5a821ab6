package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/internal/pki"
)

// saveCascades is how often the state of cascades is looked at.
const saveCascades = 2 * time.Second

// cascadeState keeps what the controllers of cascades know over a restart:
// tracked thresholds and the day's spending.
type cascadeState struct {
	path   string
	models map[string]gateway.Model
	log    *slog.Logger
}

// cascadeFile is the file: each model's controller.
type cascadeFile struct {
	Version int                     `json:"version"`
	Models  map[string]policy.Saved `json:"models"`
}

const cascadeFileVersion = 1

// newCascadeState restores the cascades of models from the file in dir. A missing
// file is none; a damaged one is an error, because a day's budget would be spent
// twice. After one of another version, which another release has written, they
// begin anew, with the day's budgets counted as spent.
func newCascadeState(dir string, models map[string]gateway.Model, log *slog.Logger) (*cascadeState, error) {
	s := &cascadeState{path: filepath.Join(dir, "cascades.json"), models: models, log: log}
	if dir == "" || len(s.saved()) == 0 {
		return nil, nil
	}
	raw, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	var head struct {
		Version int `json:"version"`
	}
	var f cascadeFile
	if err == nil {
		err = json.Unmarshal(raw, &head)
	}
	if err == nil && head.Version != cascadeFileVersion {
		s.exhaust(head.Version)
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("state of cascades in %s: %w: move the file away to begin anew", filepath.Base(s.path), err)
	}
	for name, saved := range f.Models {
		if c := models[name].Cascade; c != nil {
			c.Restore(saved)
		}
	}
	return s, nil
}

// exhaust counts today's budgets as spent: what they hold is not known.
func (s *cascadeState) exhaust(version int) {
	s.log.Warn("state of cascades is of another release: they begin anew, and today's budgets count as spent",
		"file", filepath.Base(s.path), "version", version, "want", cascadeFileVersion)
	for _, m := range s.models {
		if m.Cascade != nil {
			m.Cascade.Exhaust(time.Now())
		}
	}
}

func (s *cascadeState) saved() map[string]policy.Saved {
	all := map[string]policy.Saved{}
	for name, m := range s.models {
		if m.Cascade != nil {
			all[name] = m.Cascade.Saved()
		}
	}
	return all
}

// run writes the file whenever something has changed, and when ctx ends. A nil
// state has nothing to keep.
func (s *cascadeState) run(ctx context.Context, every time.Duration) {
	if s == nil {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last map[string]policy.Saved
	for done := false; !done; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			done = true
		}
		now := s.saved()
		if reflect.DeepEqual(now, last) {
			continue
		}
		if err := s.write(now); err != nil {
			s.log.Error("state of cascades was not saved", "error", err)
			continue
		}
		last = now
	}
}

func (s *cascadeState) write(models map[string]policy.Saved) error {
	raw, err := json.Marshal(cascadeFile{cascadeFileVersion, models})
	if err != nil {
		return err
	}
	return pki.WriteSecret(s.path, raw)
}
