package format

import (
	"fmt"
	"os"
	"path/filepath"
)

// Replace writes a file beside path and renames it, so that a reader never
// sees half of it.
func Replace(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".weir-plan-*")
	if err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Chmod(tmp.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	return nil
}
