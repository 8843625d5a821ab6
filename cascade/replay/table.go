package replay

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// Limits of an input file.
const (
	maxBytes   = 1 << 30 // unpacked
	maxRows    = 5_000_000
	maxColumns = 1000
)

// table is a file of named columns.
type table struct {
	columns []string
	index   map[string]int
	rows    [][]string
}

func newTable() *table { return &table{index: map[string]int{}} }

// addColumn appends a column and returns its position.
func (t *table) addColumn(name string) (int, error) {
	if len(t.columns) == maxColumns {
		return 0, fmt.Errorf("more than %d columns", maxColumns)
	}
	i := len(t.columns)
	t.columns = append(t.columns, name)
	t.index[name] = i
	return i, nil
}

func (t *table) addRow(row []string) error {
	if len(t.rows) == maxRows {
		return fmt.Errorf("more than %d rows", maxRows)
	}
	t.rows = append(t.rows, row)
	return nil
}

func (t *table) has(names ...string) bool {
	for _, n := range names {
		if _, ok := t.index[n]; !ok {
			return false
		}
	}
	return true
}

// names lists the columns for a message.
func (t *table) names() string { return strings.Join(t.columns, ", ") }

// row reads the cells of one row by column name.
type row struct {
	t     *table
	cells []string
	err   error
}

func (r *row) text(col string) string {
	i, ok := r.t.index[col]
	if col == "" || !ok || i >= len(r.cells) {
		return ""
	}
	return r.cells[i]
}

// number reads a number, a percentage or a verdict; missing is what an empty
// cell means. The first cell that is none of these is kept as the row's error.
func (r *row) number(col string, missing float64) float64 {
	s := strings.TrimSpace(r.text(col))
	switch strings.ToLower(s) {
	case "", "nan", "null", "none", "na", "n/a", "-":
		return missing
	case "true", "t", "yes", "y", "right", "correct", "pass", "passed":
		return 1
	case "false", "f", "no", "n", "wrong", "incorrect", "fail", "failed":
		return 0
	}
	digits, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if percent {
		v /= 100
	}
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("column %q: %q is not a number", col, s)
	}
	return v
}

// stem is a file's name without folder and extensions.
func stem(path string) string {
	s := filepath.Base(path)
	for _, ext := range []string{".gz", ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".txt"} {
		s = strings.TrimSuffix(s, ext)
	}
	return s
}
