package cost

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// Read reads a model that Write has written, and checks it.
func Read(path string) (*Model, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cost model: %w", err)
	}
	var m Model
	err = json.Unmarshal(data, &m)
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return nil, fmt.Errorf("cost model %s: %w: make it with 'weir worker bench'", path, err)
	}
	return &m, nil
}

// check refuses models that give no answer for some step.
func (m *Model) check() error {
	if len(m.Pieces) == 0 {
		return errors.New("it has no pieces")
	}
	last := 0
	for i, p := range m.Pieces {
		end := i == len(m.Pieces)-1
		if end != (p.UpTo == 0) || !end && p.UpTo <= last {
			return errors.New("its pieces are not in order with an open last one")
		}
		last = p.UpTo
	}
	return nil
}

// Write writes m as indented JSON.
func (m *Model) Write(path string) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
