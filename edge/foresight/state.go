package foresight

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/cascade/prerouter"
)

// state is the snapshot.
type state struct {
	Version  int                     `json:"version"`
	Model    string                  `json:"model"`
	Embedder string                  `json:"embedder,omitempty"` // its model: vectors of two do not compare
	Cells    map[string]cellState    `json:"cells"`
	Similar  *prerouter.SimilarState `json:"similar,omitempty"`
}

type cellState struct {
	Seen   int             `json:"seen"`
	Router prerouter.State `json:"router"`
}

const stateVersion = 1

// Open reads what was kept. A damaged snapshot is logged, and all begins anew.
func Open(opt Options) (*Foresight, error) {
	f := &Foresight{opt: opt}
	if opt.Dir == "" {
		return f, nil
	}
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("foresight: %w", err)
	}
	raw, _, err := journal.ReadSnapshot(opt.Dir)
	if err == nil && raw != nil {
		err = f.restore(raw)
	}
	if err != nil {
		opt.Log.Warn("what prompts tell is learned again: its snapshot is not usable", "err", err)
		f = &Foresight{opt: opt}
	}
	return f, nil
}

func (f *Foresight) embedderModel() string {
	if f.opt.Embedder == nil {
		return ""
	}
	return f.opt.Embedder.opt.Model
}

func (f *Foresight) save() error {
	s := state{Version: stateVersion, Embedder: f.embedderModel(), Cells: map[string]cellState{}}
	f.mu.Lock()
	s.Model = f.model
	for name, g := range f.cells {
		s.Cells[name] = cellState{g.seen, g.router.State()}
	}
	changes := f.changes
	f.mu.Unlock()
	f.near.RLock()
	if f.similar != nil {
		kept := f.similar.State()
		s.Similar = &kept
	}
	f.near.RUnlock()
	return journal.WriteSnapshot(f.opt.Dir, changes, func(w io.Writer) error { return json.NewEncoder(w).Encode(s) })
}

func (f *Foresight) restore(raw []byte) error {
	var s state
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("%w: %w", prerouter.ErrState, err)
	}
	if s.Version != stateVersion || len(s.Cells) > mostCell {
		return fmt.Errorf("%w: version %d with %d classes", prerouter.ErrState, s.Version, len(s.Cells))
	}
	f.model, f.cells = s.Model, map[string]*guesser{}
	for name, c := range s.Cells {
		r, err := prerouter.RestoreRouter(c.Router)
		if err != nil {
			return err
		}
		if c.Seen < 0 {
			return errors.New("a class has seen fewer than no verdicts")
		}
		f.cells[name] = &guesser{router: r, seen: c.Seen}
	}
	if s.Similar == nil || s.Embedder != f.embedderModel() {
		return nil
	}
	var err error
	f.similar, err = prerouter.RestoreSimilar(*s.Similar)
	return err
}
