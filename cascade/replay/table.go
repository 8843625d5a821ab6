package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Limits of an input file.
const (
	maxRows    = 5_000_000
	maxLine    = 4 << 20
	maxColumns = 1000
)

// table is a file of named columns, read row by row.
type table struct {
	columns []string
	index   map[string]int
	rows    [][]string
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

// readTable reads CSV (with a header) or JSON lines, gzipped or not; it looks
// at the bytes, not at the name.
func readTable(r io.Reader) (*table, error) {
	br := bufio.NewReaderSize(r, 1<<16)
	if head, _ := br.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		zr, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		defer zr.Close()
		br = bufio.NewReaderSize(zr, 1<<16)
	}
	if head, _ := br.Peek(3); bytes.Equal(head, []byte("\xef\xbb\xbf")) {
		br.Discard(3)
	}
	head, err := br.Peek(1)
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the file is empty")
	case err != nil:
		return nil, err
	case head[0] == '{':
		return readJSONLines(br)
	case head[0] == '[':
		return nil, errors.New("a JSON array: write one object a line instead")
	}
	return readCSV(br)
}

func readCSV(r io.Reader) (*table, error) {
	cr := csv.NewReader(r)
	cr.ReuseRecord = false
	header, err := cr.Read()
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	t := &table{index: map[string]int{}}
	for i, name := range header {
		name = strings.TrimSpace(name)
		if _, twice := t.index[name]; twice {
			return nil, fmt.Errorf("column %q occurs twice", name)
		}
		t.columns = append(t.columns, name)
		t.index[name] = i
	}
	for {
		row, err := cr.Read()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, err
		}
		if len(t.rows) == maxRows {
			return nil, fmt.Errorf("more than %d rows", maxRows)
		}
		t.rows = append(t.rows, row)
	}
}

func readJSONLines(r io.Reader) (*table, error) {
	t := &table{index: map[string]int{}}
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 1<<16), maxLine)
	for line := 1; sc.Scan(); line++ {
		if len(bytes.TrimSpace(sc.Bytes())) == 0 {
			continue
		}
		var obj map[string]any
		dec := json.NewDecoder(bytes.NewReader(sc.Bytes()))
		dec.UseNumber()
		if err := dec.Decode(&obj); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if len(t.rows) == maxRows {
			return nil, fmt.Errorf("more than %d rows", maxRows)
		}
		row := make([]string, len(t.columns), len(t.columns)+4)
		for _, k := range slices.Sorted(maps.Keys(obj)) {
			v := obj[k]
			i, ok := t.index[k]
			if !ok {
				if len(t.columns) == maxColumns {
					return nil, fmt.Errorf("line %d: more than %d members", line, maxColumns)
				}
				i = len(t.columns)
				t.columns = append(t.columns, k)
				t.index[k] = i
				row = append(row, "")
			}
			row[i] = scalar(v)
		}
		t.rows = append(t.rows, row)
	}
	if err := sc.Err(); err != nil {
		return nil, err
	}
	return t, nil
}

func scalar(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case json.Number:
		return v.String()
	case bool:
		return strconv.FormatBool(v)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(b)
}

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

// number reads a number or a truth value; missing is what an empty cell means.
// The first cell that is neither is kept as the row's error.
func (r *row) number(col string, missing float64) float64 {
	s := strings.TrimSpace(r.text(col))
	switch strings.ToLower(s) {
	case "", "nan", "null", "none", "na":
		return missing
	case "true", "yes":
		return 1
	case "false", "no":
		return 0
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("column %q: %q is not a number", col, s)
	}
	return v
}

// stem is a file's name without folder and extensions.
func stem(path string) string {
	s := filepath.Base(path)
	for _, ext := range []string{".gz", ".csv", ".jsonl", ".json", ".txt"} {
		s = strings.TrimSuffix(s, ext)
	}
	return s
}
