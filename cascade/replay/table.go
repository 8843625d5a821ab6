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
	plain   map[string]string // columns by their plain names, the first of each
	rows    [][]string
	// torn are the rows, from 0, with more or fewer cells than there are columns.
	torn map[int]error
}

func newTable() *table {
	return &table{index: map[string]int{}, plain: map[string]string{}, torn: map[int]error{}}
}

// whole is an error where a row is torn.
func (t *table) whole() error {
	for i := range t.rows {
		if err := t.torn[i]; err != nil {
			return fmt.Errorf("row %d: %w", i+1, err)
		}
	}
	return nil
}

// addColumn appends a column and returns its position.
func (t *table) addColumn(name string) (int, error) {
	if len(t.columns) == maxColumns {
		return 0, fmt.Errorf("more than %d columns", maxColumns)
	}
	i := len(t.columns)
	t.columns = append(t.columns, name)
	t.index[name] = i
	if p := plain(name); name != "" && t.plain[p] == "" {
		t.plain[p] = name
	}
	return i, nil
}

func (t *table) addRow(row []string) error {
	if len(t.rows) == maxRows {
		return fmt.Errorf("more than %d rows", maxRows)
	}
	t.rows = append(t.rows, row)
	return nil
}

// find returns the column with a plain name, "" where there is none.
func (t *table) find(name string) string { return t.plain[plain(name)] }

func (t *table) exact(name string) bool {
	_, ok := t.index[name]
	return ok
}

func (t *table) has(names ...string) bool {
	for _, n := range names {
		if t.find(n) == "" {
			return false
		}
	}
	return true
}

// usual returns the first of some plain names that the file has, or "".
func (t *table) usual(names []string) string {
	for _, name := range names {
		if have := t.plain[name]; have != "" {
			return have
		}
	}
	return ""
}

// names lists the columns for a message.
func (t *table) names() string { return shortList(t.columns) }

// shortList joins names, as many as a line of a message bears.
func shortList(names []string) string {
	const most = 24
	list, more := names, ""
	if len(names) > most {
		list, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	short := make([]string, len(list))
	for i, n := range list {
		if r := []rune(n); len(r) > 40 {
			n = string(r[:40]) + "…"
		}
		short[i] = n
	}
	return strings.Join(short, ", ") + more
}

// row reads the cells of one row by column name.
type row struct {
	t     *table
	cells []string
	err   error
}

func (r *row) text(col string) string {
	if col == "" {
		return ""
	}
	i, ok := r.t.index[col]
	if !ok {
		i, ok = r.t.index[r.t.find(col)]
	}
	if !ok || i >= len(r.cells) {
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
	digits, percent := strings.CutSuffix(strings.TrimPrefix(s, "$"), "%")
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
	for _, ext := range []string{".gz", ".zip", ".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".txt"} {
		if cut := len(s) - len(ext); cut > 0 && strings.EqualFold(s[cut:], ext) {
			s = s[:cut]
		}
	}
	return s
}
