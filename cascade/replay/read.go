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
	"slices"
	"strconv"
	"strings"
)

// readTable reads CSV with a header, or JSON objects one after another or in
// an array, gzipped or not; it looks at the bytes, not at the name.
func readTable(r io.Reader) (*table, error) {
	data, err := readText(r)
	if err != nil {
		return nil, err
	}
	switch start := bytes.TrimLeft(data, " \t\r\n"); {
	case len(start) == 0:
		return nil, errors.New("the file is empty")
	case start[0] == '{' || start[0] == '[':
		return readJSON(start)
	}
	return readCSV(data)
}

// readText unpacks a file and drops its byte order mark.
func readText(r io.Reader) ([]byte, error) {
	br := bufio.NewReaderSize(r, 1<<16)
	var text io.Reader = br
	if head, _ := br.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		zr, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		defer zr.Close()
		text = zr
	}
	data, err := io.ReadAll(io.LimitReader(text, maxBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxBytes:
		return nil, fmt.Errorf("more than %d bytes", maxBytes)
	case bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}):
		return nil, errors.New("the text is UTF-16: save it as UTF-8")
	}
	return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), nil
}

// readCSV reads cells that are separated by commas, tabs or semicolons,
// whichever the header has most of. Columns without a name are left out.
func readCSV(data []byte) (*table, error) {
	cr := csv.NewReader(bytes.NewReader(data))
	cr.Comma = separator(data)
	header, err := cr.Read()
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	t := newTable()
	for _, name := range header {
		name = strings.TrimSpace(name)
		if _, twice := t.index[name]; twice && name != "" {
			return nil, fmt.Errorf("column %q occurs twice", name)
		}
		if _, err := t.addColumn(name); err != nil {
			return nil, err
		}
	}
	delete(t.index, "")
	for {
		row, err := cr.Read()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, err
		}
		if err := t.addRow(row); err != nil {
			return nil, err
		}
	}
}

func separator(data []byte) rune {
	header, _, _ := bytes.Cut(data, []byte("\n"))
	best := ','
	for _, c := range "\t;" {
		if bytes.Count(header, []byte(string(c))) > bytes.Count(header, []byte(string(best))) {
			best = c
		}
	}
	return best
}

// readJSON reads objects, one a line or spread over lines, or an array of them.
// A member of a nested object is a column named after both: edge_ok.
func readJSON(data []byte) (*table, error) {
	quoteBare(data)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	fail := func(err error) (*table, error) {
		line := 1 + bytes.Count(data[:dec.InputOffset()], []byte("\n"))
		return nil, fmt.Errorf("line %d: %w", line, err)
	}
	array := data[0] == '['
	if array {
		if _, err := dec.Token(); err != nil {
			return fail(err)
		}
	}
	t := newTable()
	for dec.More() {
		if err := t.addObject(dec); err != nil {
			return fail(err)
		}
	}
	if array {
		if _, err := dec.Token(); err != nil {
			return fail(fmt.Errorf("the array does not end: %w", err))
		}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fail(errors.New("there is something after the last object"))
	}
	return t, nil
}

// addObject adds the next object as a row.
func (t *table) addObject(dec *json.Decoder) error {
	var object map[string]any
	var kind *json.UnmarshalTypeError
	switch err := dec.Decode(&object); {
	case errors.As(err, &kind):
		return fmt.Errorf("a %s where an object should be", kind.Value)
	case err != nil:
		return err
	}
	row := make([]string, len(t.columns), len(t.columns)+4)
	if err := t.flatten("", object, &row); err != nil {
		return err
	}
	return t.addRow(row)
}

// bare are the numbers that Python writes and JSON does not know, and strings
// of the same length that mean the same here.
var bare = []struct{ from, to string }{{"-Infinity", `"-inf"   `}, {"Infinity", `"inf"   `}, {"NaN", `"" `}}

// quoteBare replaces bare numbers outside of strings, in place.
func quoteBare(data []byte) {
	inside := false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			inside = !inside
		case inside && c == '\\':
			i++
		case !inside && (c == '-' || c == 'I' || c == 'N'):
			for _, b := range bare {
				if bytes.HasPrefix(data[i:], []byte(b.from)) {
					i += copy(data[i:], b.to) - 1
					break
				}
			}
		}
	}
}

func (t *table) flatten(prefix string, object map[string]any, row *[]string) error {
	for _, k := range slices.Sorted(maps.Keys(object)) {
		name, v := prefix+k, object[k]
		if nested, ok := v.(map[string]any); ok {
			if err := t.flatten(name+"_", nested, row); err != nil {
				return err
			}
			continue
		}
		i, ok := t.index[name]
		if !ok {
			var err error
			if i, err = t.addColumn(name); err != nil {
				return err
			}
			*row = append(*row, "")
		}
		(*row)[i] = scalar(v)
	}
	return nil
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
