package policies

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/weirhq/weir/cascade/policy"
)

// maxKept bounds the file of the controllers, bytes.
const maxKept = 16 << 20

// kept is the file: each row's controller.
type kept struct {
	Version int                     `json:"version"`
	Rows    map[string]policy.Saved `json:"rows"`
}

const keptVersion = 1

// Restore reads what Keep has written, so that a day's spending and a tracked
// threshold outlive a restart. It is called before the first For. A missing file
// is none; a damaged one is an error, and nothing of it is used.
func (s *Set) Restore(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && info.Size() > maxKept {
		return fmt.Errorf("cascade controllers: %s has %d bytes", filepath.Base(path), info.Size())
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("cascade controllers: %w", err)
	}
	var k kept
	if err := json.Unmarshal(raw, &k); err != nil {
		return fmt.Errorf("cascade controllers: %s is damaged: %w", filepath.Base(path), err)
	}
	if k.Version != keptVersion {
		return fmt.Errorf("cascade controllers: %s has version %d, want %d", filepath.Base(path), k.Version, keptVersion)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved = k.Rows
	return nil
}

// save returns what every row has to remember, those not seen since the start
// included.
func (s *Set) save() map[string]policy.Saved {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make(map[string]policy.Saved, len(s.rows)+len(s.saved))
	for name, saved := range s.saved {
		all[name] = saved
	}
	for at, st := range s.rows {
		all[at.name()] = st.class.saved()
	}
	return all
}

// Keep writes the controllers to a file whenever they have changed, at most
// once in every, and when ctx ends.
func (s *Set) Keep(ctx context.Context, path string, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	s.mu.RLock()
	last := s.saved // what the file holds
	s.mu.RUnlock()
	for done := false; !done; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			done = true
		}
		now := s.save()
		if len(now) == 0 || reflect.DeepEqual(now, last) {
			continue
		}
		if err := write(path, kept{keptVersion, now}); err != nil {
			s.log.Error("cascade controllers were not saved", "err", err)
			continue
		}
		last = now
	}
	return nil
}

// write replaces the file by a whole new one.
func write(path string, k kept) error {
	raw, err := json.Marshal(k)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".controllers-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename, and that is right
	_, err = f.Write(raw)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
