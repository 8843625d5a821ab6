package format

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"path"

	"github.com/weirhq/weir/experts/load"
)

// isZip tells a torch file (torch >= 1.6) by the zip magic.
func isZip(data []byte) bool { return bytes.HasPrefix(data, []byte("PK\x03\x04")) }

// torchFile is a zip with <root>/data.pkl and <root>/data/<key> storages.
type torchFile struct {
	data  []byte
	files map[string]*zip.File
	root  string
	read  map[string][]byte // members that were looked at, parts of data
	left  int               // bytes that members not yet looked at may have
}

func openTorch(data []byte) (*torchFile, any, error) {
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: not a torch file: %w", ErrFormat, err)
	}
	t := &torchFile{data: data, files: map[string]*zip.File{}, read: map[string][]byte{}, left: len(data)}
	for _, f := range z.File {
		if path.Base(f.Name) == "data.pkl" && t.root == "" {
			t.root = path.Dir(f.Name)
		}
		t.files[f.Name] = f
	}
	pickle, err := t.member("data.pkl", maxPickle)
	if err != nil {
		return nil, nil, err
	}
	if order, err := t.member("byteorder", 16); err == nil && string(order) != "little" {
		return nil, nil, fmt.Errorf("%w: torch file is not little endian", ErrFormat)
	}
	v, err := unpickle(pickle)
	return t, v, err
}

// member returns a member of at most limit bytes, as a part of the file. torch
// stores members without compression; anything else is refused. Each is checked
// once, and all together are no larger than the file: neither records that
// share a storage nor members that overlap make the work grow.
func (t *torchFile) member(name string, limit uint64) ([]byte, error) {
	name = path.Join(t.root, name)
	if raw, ok := t.read[name]; ok {
		return raw, nil
	}
	f := t.files[name]
	if f == nil {
		return nil, fmt.Errorf("%w: torch file has no %.80s", ErrFormat, name)
	}
	if f.Method != zip.Store || f.UncompressedSize64 > limit {
		return nil, fmt.Errorf("%w: torch member %.80s is compressed or larger than %d bytes", ErrFormat, name, limit)
	}
	at, err := f.DataOffset()
	if err != nil {
		return nil, fmt.Errorf("%w: torch member %.80s: %w", ErrFormat, name, err)
	}
	size := int(f.UncompressedSize64)
	if t.left -= size; t.left < 0 || at < 0 || at > int64(len(t.data)-size) {
		return nil, fmt.Errorf("%w: torch member %.80s overlaps others or the end of the file", ErrFormat, name)
	}
	raw := t.data[at : int(at)+size : int(at)+size]
	if f.CRC32 != 0 && crc32.ChecksumIEEE(raw) != f.CRC32 { // torch can leave it out
		return nil, fmt.Errorf("%w: torch member %.80s is damaged: wrong checksum", ErrFormat, name)
	}
	t.read[name] = raw
	return raw, nil
}

// elementSize is the bytes per element of a storage.
var elementSize = map[string]int64{
	"torch.DoubleStorage": 8, "torch.LongStorage": 8, "torch.FloatStorage": 4, "torch.IntStorage": 4,
	"torch.HalfStorage": 2, "torch.BFloat16Storage": 2, "torch.ShortStorage": 2,
	"torch.CharStorage": 1, "torch.ByteStorage": 1, "torch.BoolStorage": 1,
}

// array copies a tensor out of its storage.
func (t *torchFile) array(v any) (array, error) {
	x, ok := v.(tensor)
	if !ok {
		return array{}, fmt.Errorf("%w: not a tensor", ErrFormat)
	}
	raw, err := t.member("data/"+x.storage.key, MaxFile)
	if err != nil {
		return array{}, err
	}
	size := elementSize[x.storage.kind]
	cells, last := int64(1), x.offset
	a := array{dims: make([]int, len(x.sizes))}
	for i, n := range x.sizes {
		if n > maxCells || x.stride[i] > maxCells {
			return array{}, fmt.Errorf("%w: tensor of shape %v", ErrFormat, x.sizes)
		}
		if cells *= n; cells > maxCells {
			return array{}, fmt.Errorf("%w: tensor of shape %v", ErrFormat, x.sizes)
		}
		a.dims[i] = int(n)
		last += max(0, n-1) * x.stride[i]
	}
	if cells == 0 || x.offset > MaxFile || last >= int64(len(raw))/size {
		return array{}, fmt.Errorf("%w: tensor of shape %v reaches beyond its storage", ErrFormat, x.sizes)
	}
	a.data = make([]float64, cells)
	index := make([]int64, len(x.sizes))
	for i := range a.data {
		at := x.offset
		for d, n := range index {
			at += n * x.stride[d]
		}
		a.data[i] = element(x.storage.kind, raw[at*size:])
		for d := len(index) - 1; d >= 0; d-- {
			if index[d]++; index[d] < x.sizes[d] {
				break
			}
			index[d] = 0
		}
	}
	return a, nil
}

// element reads one little-endian value.
func element(kind string, b []byte) float64 {
	le := binary.LittleEndian
	switch kind {
	case "torch.DoubleStorage":
		return math.Float64frombits(le.Uint64(b))
	case "torch.FloatStorage":
		return float64(math.Float32frombits(le.Uint32(b)))
	case "torch.BFloat16Storage":
		return float64(math.Float32frombits(uint32(le.Uint16(b)) << 16))
	case "torch.HalfStorage":
		return half(le.Uint16(b))
	case "torch.LongStorage":
		return float64(int64(le.Uint64(b)))
	case "torch.IntStorage":
		return float64(int32(le.Uint32(b)))
	case "torch.ShortStorage":
		return float64(int16(le.Uint16(b)))
	case "torch.CharStorage":
		return float64(int8(b[0]))
	}
	return float64(b[0])
}

// half converts IEEE 754 binary16.
func half(h uint16) float64 {
	exp, frac := int(h>>10&31), float64(h&1023)
	v := 0.0
	switch exp {
	case 0:
		v = math.Ldexp(frac, -24)
	case 31:
		if v = math.Inf(1); frac != 0 {
			v = math.NaN()
		}
	default:
		v = math.Ldexp(1024+frac, exp-25)
	}
	if h>>15 == 1 {
		return -v
	}
	return v
}

// parseTorchLoads reads a dump of SGLang's expert distribution recorder: mode
// stat has logical_count, the per_* modes have physical counts per forward
// pass and the map that they were taken under.
func parseTorchLoads(data []byte) (Loads, error) {
	t, v, err := openTorch(data)
	if err != nil {
		return Loads{}, err
	}
	root, ok := v.(*dict)
	if !ok {
		return Loads{}, fmt.Errorf("%w: torch file holds no dict", ErrFormat)
	}
	if root.m["logical_count"] != nil {
		a, err := t.array(root.m["logical_count"])
		if err != nil {
			return Loads{}, fmt.Errorf("logical_count: %w", err)
		}
		counts, err := a.loads()
		return Loads{Source: "sglang recorder", Counts: counts}, err
	}
	if root.m["records"] != nil {
		counts, err := t.records(root)
		return Loads{Source: "sglang recorder", Counts: counts}, err
	}
	return Loads{}, fmt.Errorf("%w: recorder file has neither logical_count nor records", ErrFormat)
}

// maxRecorded bounds records times slots: records may share one tensor.
const maxRecorded = 256 << 20

// records sums physical counts and maps them to logical experts.
func (t *torchFile) records(root *dict) (load.Counts, error) {
	a, err := t.array(root.m["last_physical_to_logical_map"])
	if err != nil {
		return nil, fmt.Errorf("last_physical_to_logical_map: %w", err)
	}
	rows, err := a.ints(load.MaxExperts)
	if err != nil {
		return nil, fmt.Errorf("last_physical_to_logical_map: %w", err)
	}
	list, ok := root.m["records"].(*list)
	if !ok {
		return nil, fmt.Errorf("%w: records is not a list", ErrFormat)
	}
	experts := highest(rows) + 1
	if len(rows)*experts > load.MaxCells || len(list.items)*len(a.data) > maxRecorded {
		return nil, fmt.Errorf("%w: %d records of %v slots", ErrFormat, len(list.items), a.dims)
	}
	out := load.NewCounts(len(rows), experts)
	for i, r := range list.items {
		d, ok := r.(*dict)
		if !ok {
			return nil, fmt.Errorf("%w: record %d is not a dict", ErrFormat, i)
		}
		a, err := t.array(d.m["global_physical_count"])
		if err != nil {
			return nil, fmt.Errorf("record %d: global_physical_count: %w", i, err)
		}
		m, err := a.loads()
		if err != nil || len(m) != len(rows) || len(m[0]) != len(rows[0]) {
			return nil, fmt.Errorf("%w: record %d does not fit the map", ErrFormat, i)
		}
		for l, row := range m {
			for s, x := range row {
				out[l][rows[l][s]] += x
			}
		}
	}
	return out, nil
}

func highest(rows [][]int) int {
	top := 0
	for _, row := range rows {
		for _, e := range row {
			top = max(top, e)
		}
	}
	return top
}
