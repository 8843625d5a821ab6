package replay

import (
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// readTable is readTorn that takes no torn rows.
func readTable(r io.Reader) (*table, error) {
	t, err := readTorn(r)
	if err != nil {
		return nil, err
	}
	return t, t.whole()
}

// readTorn reads CSV with a header, or JSON objects one after another or in an
// array, packed by gzip or zip or not; it looks at the bytes, not at the name.
func readTorn(r io.Reader) (*table, error) {
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
	switch head, _ := br.Peek(4); {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		zr, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		defer zr.Close()
		text = zr
	case string(head) == "PK\x03\x04":
		file, err := unzip(br)
		if err != nil {
			return nil, fmt.Errorf("zip: %w", err)
		}
		defer file.Close()
		text = file
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

// unzip opens the only file of an archive.
func unzip(r io.Reader) (io.ReadCloser, error) {
	packed, err := io.ReadAll(io.LimitReader(r, maxBytes))
	if err != nil {
		return nil, err
	}
	archive, err := zip.NewReader(bytes.NewReader(packed), int64(len(packed)))
	if err != nil {
		return nil, err
	}
	files := slices.DeleteFunc(archive.File, besides)
	if len(files) != 1 {
		return nil, fmt.Errorf("it holds %d files: want one", len(files))
	}
	return files[0].Open()
}

// besides reports whether an entry is a folder, or of what macOS packs beside the
// files: their attributes (AppleDouble) and how a folder looks.
func besides(f *zip.File) bool {
	name := path.Base(f.Name)
	return strings.HasSuffix(f.Name, "/") || strings.HasPrefix(f.Name, "__MACOSX/") || strings.HasPrefix(name, "._") || name == ".DS_Store"
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
		if errors.Is(err, csv.ErrFieldCount) {
			t.torn[len(t.rows)] = fmt.Errorf("%d cells for %d columns", len(row), len(header))
		} else if err != nil {
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
// A member of a nested object is a column named after both: edge_ok. Columns have
// the order of members.
func readJSON(data []byte) (*table, error) {
	quoteBare(data)
	dec := json.NewDecoder(bytes.NewReader(data))
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
	var object json.RawMessage
	if err := dec.Decode(&object); err != nil {
		return err
	}
	if object[0] != '{' {
		return fmt.Errorf("a %s where an object should be", kindOf(object[0]))
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

// kindOf names a JSON value by its first byte.
func kindOf(first byte) string {
	switch first {
	case '"':
		return "string"
	case '[':
		return "array"
	case 't', 'f':
		return "bool"
	case 'n':
		return "null"
	}
	return "number"
}

func (t *table) flatten(prefix string, object json.RawMessage, row *[]string) error {
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return err
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return err
		}
		name := prefix + key.(string)
		if v[0] == '{' {
			if err := t.flatten(name+"_", v, row); err != nil {
				return err
			}
			continue
		}
		i, ok := t.index[name]
		if !ok {
			if i, err = t.addColumn(name); err != nil {
				return err
			}
			*row = append(*row, "")
		}
		if (*row)[i], err = scalar(v); err != nil {
			return err
		}
	}
	return nil
}

// scalar is a value as a cell: a string without its quotes, null empty.
func scalar(v json.RawMessage) (s string, err error) {
	switch {
	case v[0] == '"':
		err = json.Unmarshal(v, &s)
	case v[0] != 'n':
		s = string(v)
	}
	return s, err
}
