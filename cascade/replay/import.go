package replay

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrFormat says that a file has neither the documented columns nor those of a
// known layout.
var ErrFormat = errors.New("columns are not known")

// Open reads a file of outcomes. cols names columns; those that it leaves empty
// are found by the layout of the file and by their usual names.
func Open(path string, cols Columns) (*Data, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d, err := Read(f, stem(path), cols)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

// Read is Open for a stream; name stands for the file's name.
func Read(r io.Reader, name string, cols Columns) (*Data, error) {
	t, err := readTorn(r)
	if err != nil {
		return nil, err
	}
	if len(t.rows) == 0 {
		return nil, errors.New("no rows")
	}
	if t.has("median_cheap_auroc", "median_benefit_auroc") {
		if err := t.whole(); err != nil {
			return nil, err
		}
		return readSummary(t)
	}
	if cols.Set != "" {
		name = cols.Set
	}
	l, err := recognise(t, name, cols)
	if err != nil {
		return nil, err
	}
	return readOutcomes(t, l, cols)
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
