package format

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// maxCells bounds the numbers of one array in a file: 64 steps of 61 layers of
// 256 experts are a million.
const maxCells = 32 << 20

// array is a dense array of numbers with up to three dimensions.
type array struct {
	dims []int
	data []float64
}

// fields parses a JSON object and explains what usually goes wrong.
func fields(data []byte) (map[string]json.RawMessage, error) {
	var m map[string]json.RawMessage
	err := json.Unmarshal(data, &m)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		at := max(0, int(syntax.Offset)-1)
		if bad := word(data[min(at, len(data)):]); bad != "" {
			return nil, fmt.Errorf("%w: %s at byte %d is not a finite number", ErrFormat, bad, at)
		}
	}
	var kind *json.UnmarshalTypeError
	if err != nil && !errors.As(err, &kind) {
		return nil, fmt.Errorf("%w: not a JSON object: %w", ErrFormat, err)
	}
	if m == nil {
		return nil, fmt.Errorf("%w: not a JSON object", ErrFormat)
	}
	return m, nil
}

// word is the NaN or Infinity, as Python writes them, that data starts with.
func word(data []byte) string {
	for _, w := range []string{"NaN", "Infinity", "-Infinity"} {
		if bytes.HasPrefix(data, []byte(w)) || bytes.HasPrefix(data, []byte(w[1:])) {
			return w
		}
	}
	return ""
}

// parseArray reads nested JSON arrays of numbers. Rows of one level must be of
// one length.
func parseArray(raw []byte) (array, error) {
	p := arrayParser{raw: raw}
	if err := p.value(0); err != nil {
		return array{}, err
	}
	if p.space(); p.at != len(raw) {
		return array{}, p.fail("more after the array")
	}
	if len(p.out.dims) == 0 {
		return array{}, p.fail("a number where an array should be")
	}
	return p.out, nil
}

type arrayParser struct {
	raw  []byte
	at   int
	leaf int // depth of numbers, 0 before the first
	out  array
}

func (p *arrayParser) fail(what string) error {
	return fmt.Errorf("%w: %s at byte %d of the array", ErrFormat, what, p.at)
}

func (p *arrayParser) space() {
	for p.at < len(p.raw) && bytes.IndexByte([]byte(" \t\r\n"), p.raw[p.at]) >= 0 {
		p.at++
	}
}

func (p *arrayParser) value(depth int) error {
	p.space()
	if p.at == len(p.raw) {
		return p.fail("unexpected end")
	}
	if p.raw[p.at] == '[' {
		return p.list(depth)
	}
	return p.number(depth)
}

func (p *arrayParser) list(depth int) error {
	if depth == 3 || p.leaf != 0 && depth >= p.leaf {
		return p.fail("an array nested deeper than its neighbours or than 3")
	}
	p.at++
	n := 0
	for {
		p.space()
		if p.at == len(p.raw) {
			return p.fail("unexpected end")
		}
		c := p.raw[p.at]
		if c == ']' {
			p.at++
			return p.end(depth, n)
		}
		if n > 0 {
			if c != ',' {
				return p.fail("no comma between values")
			}
			p.at++
		}
		if err := p.value(depth + 1); err != nil {
			return err
		}
		n++
	}
}

// end records the length of a finished list, or checks it.
func (p *arrayParser) end(depth, n int) error {
	for len(p.out.dims) <= depth {
		p.out.dims = append(p.out.dims, -1)
	}
	if p.out.dims[depth] < 0 {
		p.out.dims[depth] = n
	}
	if p.out.dims[depth] != n {
		return fmt.Errorf("%w: a row of %d values among rows of %d", ErrFormat, n, p.out.dims[depth])
	}
	return nil
}

func (p *arrayParser) number(depth int) error {
	start := p.at
	for p.at < len(p.raw) && bytes.IndexByte([]byte("0123456789+-.eE"), p.raw[p.at]) >= 0 {
		p.at++
	}
	v, err := strconv.ParseFloat(string(p.raw[start:p.at]), 64)
	if err != nil {
		return p.fail("something that is not a finite number")
	}
	if p.leaf == 0 {
		p.leaf = depth
	}
	if p.leaf != depth || depth == 0 {
		return p.fail("a number where a row should be")
	}
	if len(p.out.data) == maxCells {
		return p.fail("too many numbers")
	}
	p.out.data = append(p.out.data, v)
	return nil
}

// matrix views a as [rows][columns]. A third, outer dimension (steps) is
// summed up.
func (a array) matrix() ([][]float64, error) {
	if len(a.dims) < 2 || len(a.dims) > 3 {
		return nil, fmt.Errorf("%w: an array of %d dimensions, want [layers][experts] or [steps][layers][experts]", ErrFormat, len(a.dims))
	}
	steps, d := 1, a.dims
	if len(d) == 3 {
		steps, d = d[0], d[1:]
	}
	rows, cols := d[0], d[1]
	if steps < 1 || rows < 1 || cols < 1 || len(a.data) != steps*rows*cols {
		return nil, fmt.Errorf("%w: an array of shape %v", ErrFormat, a.dims)
	}
	for i, v := range a.data[rows*cols:] {
		a.data[i%(rows*cols)] += v
	}
	out := make([][]float64, rows)
	for r := range out {
		out[r] = a.data[r*cols : (r+1)*cols : (r+1)*cols]
	}
	return out, nil
}

// nonNegative checks single values before steps are summed: a sum could hide
// a negative one.
func (a array) nonNegative() error {
	for i, v := range a.data {
		if !(v >= 0) {
			return fmt.Errorf("%w: value %d is %v, loads are not negative", ErrFormat, i, v)
		}
	}
	return nil
}

// loads is matrix with values checked.
func (a array) loads() ([][]float64, error) {
	if err := a.nonNegative(); err != nil {
		return nil, err
	}
	return a.matrix()
}

// ints views a as rows of integers in [0, limit).
func (a array) ints(limit int) ([][]int, error) {
	if len(a.dims) == 3 {
		return nil, fmt.Errorf("%w: a map of 3 dimensions", ErrFormat)
	}
	m, err := a.matrix()
	if err != nil {
		return nil, err
	}
	out := make([][]int, len(m))
	for r, row := range m {
		out[r] = make([]int, len(row))
		for i, v := range row {
			if v != float64(int(v)) || v < 0 || v >= float64(limit) {
				return nil, fmt.Errorf("%w: %v in row %d is not an expert number", ErrFormat, v, r)
			}
			out[r][i] = int(v)
		}
	}
	return out, nil
}
