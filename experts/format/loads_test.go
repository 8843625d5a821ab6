package format

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/experts/load"
)

func equalCounts(a load.Counts, b [][]float64) bool {
	if len(a) != len(b) {
		return false
	}
	for l := range a {
		if len(a[l]) != len(b[l]) {
			return false
		}
		for e := range a[l] {
			if a[l][e] != b[l][e] {
				return false
			}
		}
	}
	return true
}

func TestParseLoads(t *testing.T) {
	tests := []struct {
		name, in string
		want     [][]float64
		source   string
	}{
		{"sglang", `{"logical_count": [[0, 0], [1.5, 2e3]]}`, [][]float64{{0, 0}, {1.5, 2000}}, "sglang"},
		{"sglang steps", `{"logical_count": [[[1,2],[3,4]],[[10,20],[30,40]]], "rank": 0}`, [][]float64{{11, 22}, {33, 44}}, "sglang"},
		{"counts", `{"num_experts":2,"top_k":1,"layers":[0,7],"counts":[[1,2],[3,4]]}`, [][]float64{{1, 2}, {3, 4}}, "counts"},
		{"window", `{"phase":"decode","top_k":1,"tokens":3,"demand":[[1,2]],"served":[[2,1]]}`, [][]float64{{1, 2}}, "weir"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := ParseLoads([]byte(tt.in))
			if err != nil || !equalCounts(l.Counts, tt.want) || l.Source != tt.source {
				t.Errorf("got %+v, %v", l, err)
			}
		})
	}
}

func TestBadLoads(t *testing.T) {
	tests := []struct {
		name, in string
		want     error
		says     string
	}{
		{"NaN", `{"logical_count": [[1, NaN]]}`, ErrFormat, "NaN"},
		{"Infinity", `{"logical_count": [[-Infinity, 1]]}`, ErrFormat, "finite"},
		{"overflow", `{"logical_count": [[1e999, 1]]}`, ErrFormat, "finite"},
		{"negative", `{"logical_count": [[1, -2]]}`, ErrFormat, "negative"},
		{"negative hidden by a sum", `{"logical_count": [[[1, -2]],[[1, 5]]]}`, ErrFormat, "negative"},
		{"ragged", `{"logical_count": [[1, 2],[3]]}`, ErrFormat, "row of 1"},
		{"mixed depth", `{"logical_count": [[1, 2], 3]}`, ErrFormat, "array"},
		{"mixed depth, list second", `{"logical_count": [1, [2]]}`, ErrFormat, "array"},
		{"one dimension", `{"logical_count": [1, 2]}`, ErrFormat, "dimensions"},
		{"four dimensions", `{"logical_count": [[[[1]]]]}`, ErrFormat, "nested"},
		{"null", `{"logical_count": [[null, 1]]}`, ErrFormat, "finite"},
		{"string", `{"logical_count": [["1", 1]]}`, ErrFormat, "finite"},
		{"empty rows", `{"logical_count": [[], []]}`, ErrFormat, "shape"},
		{"all zero", `{"logical_count": [[0, 0]]}`, ErrFormat, "zero"},
		{"other members", `{"foo": 1}`, ErrFormat, "no member"},
		{"not an object", `[1, 2]`, ErrFormat, "object"},
		{"cut off", `{"logical_count": [[1, 2`, ErrFormat, "object"},
		{"empty", ``, ErrFormat, "object"},
		{"wrong E", `{"num_experts":3,"counts":[[1,2]]}`, ErrFormat, "num_experts is 3"},
		{"layers do not fit", `{"layers":[0,1],"counts":[[1,2]]}`, ErrFormat, "rows in order"},
		{"layers fall", `{"layers":[3,1],"counts":[[1,2],[1,2]]}`, ErrFormat, "rows in order"},
		{"window shapes differ", `{"demand":[[1,2]],"served":[[1,2,3]]}`, load.ErrShape, "served"},
		{"too large a count", `{"logical_count": [[1e300, 1]]}`, load.ErrValue, "expert 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseLoads([]byte(tt.in))
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %v that says %q", err, tt.want, tt.says)
			}
		})
	}
}

func TestRecorderFixtures(t *testing.T) {
	tests := []struct {
		file string
		want [][]float64
	}{
		{"recorder_stat.pt", [][]float64{{82, 49, 96, 77, 53, 90, 65, 86}, {85, 106, 95, 76, 46, 72, 92, 111},
			{70, 58, 128, 85, 68, 73, 61, 67}, {46, 75, 80, 79, 120, 64, 79, 52}}},
		// Three passes of 1, 2 and 3 tokens per slot; experts with two slots count twice.
		{"recorder_per_pass.pt", [][]float64{{12, 6, 6, 12, 6, 6, 6, 6}, {6, 12, 12, 6, 6, 6, 6, 6}}},
		{"recorder_half_strided.pt", [][]float64{{0, 4, 8, 12, 16, 20}, {1, 5, 9, 13, 17, 21}, {2, 6, 10, 14, 18, 22}, {3, 7, 11, 15, 19, 23}}},
	}
	for _, tt := range tests {
		l, err := ReadLoads(filepath.Join("testdata", tt.file))
		if err != nil || !equalCounts(l.Counts, tt.want) {
			t.Errorf("%s: got %+v, %v", tt.file, l.Counts, err)
		}
	}
	_, err := ReadLoads("testdata/malicious.pt")
	if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), `"posix.system" is not allowed`) {
		t.Errorf("malicious pickle: %v", err)
	}
}

// torchZip makes a torch file around a pickle.
func torchZip(pickle string, storages map[string][]byte, method uint16) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	add := func(name string, data []byte) {
		w, _ := z.CreateHeader(&zip.FileHeader{Name: "a/" + name, Method: method})
		_, _ = w.Write(data)
	}
	add("data.pkl", []byte(pickle))
	for k, v := range storages {
		add("data/"+k, v)
	}
	_ = z.Close()
	return b.Bytes()
}

// tensorPickle is {"logical_count": tensor} with the given numbers: an int32
// storage "0" of numel elements, offset, two sizes and two strides.
func tensorPickle(numel, offset, s0, s1, t0, t1 byte) string {
	k := func(n byte) string { return "K" + string([]byte{n}) }
	str := func(s string) string { return "X" + string([]byte{byte(len(s)), 0, 0, 0}) + s }
	return "\x80\x02}(" + str("logical_count") +
		"ctorch._utils\n_rebuild_tensor_v2\n((" + str("storage") + "ctorch\nIntStorage\n" + str("0") + str("cpu") + k(numel) + "tQ" +
		k(offset) + k(s0) + k(s1) + "\x86" + k(t0) + k(t1) + "\x86\x89ccollections\nOrderedDict\n)RtRu."
}

func TestBadTorch(t *testing.T) {
	good := tensorPickle(4, 0, 2, 2, 2, 1)
	store := map[string][]byte{"0": make([]byte, 16)}
	store["0"][0] = 7
	if l, err := ParseLoads(torchZip(good, store, zip.Store)); err != nil || l.Counts[0][0] != 7 {
		t.Fatalf("the good file: %+v, %v", l, err)
	}
	tests := []struct {
		name string
		data []byte
	}{
		{"no pickle", torchZip("", nil, zip.Store)[:30]},
		{"empty pickle", torchZip("", nil, zip.Store)},
		{"compressed", torchZip(good, store, zip.Deflate)},
		{"no storage", torchZip(good, nil, zip.Store)},
		{"short storage", torchZip(good, map[string][]byte{"0": make([]byte, 15)}, zip.Store)},
		{"stride beyond", torchZip(tensorPickle(4, 0, 2, 2, 9, 1), store, zip.Store)},
		{"offset beyond", torchZip(tensorPickle(4, 1, 2, 2, 2, 1), store, zip.Store)},
		{"no cells", torchZip(tensorPickle(4, 0, 0, 2, 2, 1), store, zip.Store)},
		{"not a dict", torchZip("\x80\x02N.", nil, zip.Store)},
		{"other global", torchZip("\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.", nil, zip.Store)},
		{"builtins by stack", torchZip("\x80\x04\x8c\x08builtins\x8c\x04eval\x93.", nil, zip.Store)},
		{"torch.load itself", torchZip("\x80\x02ctorch\nload\n.", nil, zip.Store)},
		{"build", torchZip("\x80\x02}}b.", nil, zip.Store)},
		{"endless memo", torchZip("\x80\x02h\x05.", nil, zip.Store)},
		{"string length", torchZip("\x80\x02X\xff\xff\xff\xffa.", nil, zip.Store)},
		{"call of a list", torchZip("\x80\x02])R.", nil, zip.Store)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if l, err := ParseLoads(tt.data); !errors.Is(err, ErrFormat) {
				t.Errorf("got %+v, %v, want ErrFormat", l, err)
			}
		})
	}
}

// A hundred thousand records of one large storage are summed without reading
// it as often.
func TestRecordsShareAStorage(t *testing.T) {
	one := tensorPickle(4, 0, 2, 2, 2, 1)
	tensor := one[strings.Index(one, "ctorch._utils") : len(one)-len("u.")]
	str := func(s string) string { return "X" + string([]byte{byte(len(s)), 0, 0, 0}) + s }
	const n = 100_000
	pickle := "\x80\x02}(" + str("last_physical_to_logical_map") + tensor + "q\x01" + str("records") +
		"](}" + str("global_physical_count") + "h\x01sq\x02" + strings.Repeat("h\x02", n-1) + "eu."
	large := make([]byte, 16<<20)
	large[4], large[8] = 1, 1 // the map, and the counts, are 0 1 / 1 0
	l, err := ParseLoads(torchZip(pickle, map[string][]byte{"0": large}, zip.Store))
	if err != nil || !equalCounts(l.Counts, [][]float64{{0, n}, {0, n}}) {
		t.Errorf("%v %v", l.Counts, err)
	}
}

func TestHalf(t *testing.T) {
	for bits, want := range map[uint16]float64{0: 0, 0x3c00: 1, 0xc000: -2, 0x0001: 0x1p-24, 0x7bff: 65504} {
		if got := half(bits); got != want {
			t.Errorf("half %#x: got %v, want %v", bits, got, want)
		}
	}
}

// safetensorsFile makes a file of I64 vectors.
func safetensorsFile(tensors map[string][]int64) []byte {
	head := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	var body []byte
	for name, row := range tensors {
		from := len(body)
		for _, v := range row {
			body = binary.LittleEndian.AppendUint64(body, uint64(v))
		}
		head[name] = map[string]any{"dtype": "I64", "shape": []int{len(row)}, "data_offsets": []int{from, len(body)}}
	}
	h, _ := json.Marshal(head)
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), h...), body...)
}

func TestTRTLLMLoads(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ReadLoads(dir); err == nil {
		t.Error("an empty folder was read")
	}
	write("meta_info.json", []byte(`{"num_experts": 2, "num_experts_per_token": 1}`))
	write("rank0.safetensors", safetensorsFile(map[string][]int64{"100_3": {1, 2}, "101_3": {10, 20}, "100_4": {5, 5}}))
	write("rank1.safetensors", safetensorsFile(map[string][]int64{"100_3": {100, 200}}))
	write("rank1_raw.safetensors", []byte("ignored"))
	l, err := ReadLoads(dir)
	if err != nil || !equalCounts(l.Counts, [][]float64{{111, 222}, {5, 5}}) || l.TopK != 1 || l.Layer(0) != 3 {
		t.Fatalf("got %+v, %v", l, err)
	}
	for name, bad := range map[string][]byte{
		"short":        {1, 2, 3},
		"header":       binary.LittleEndian.AppendUint64(nil, 1<<40),
		"wrong E":      safetensorsFile(map[string][]int64{"1_3": {1, 2, 3}}),
		"negative":     safetensorsFile(map[string][]int64{"1_3": {1, -2}}),
		"deep layer":   safetensorsFile(map[string][]int64{"1_99999": {1, 2}}),
		"beyond":       []byte(strings.Replace(string(safetensorsFile(map[string][]int64{"1_3": {1, 2}})), "[0,16]", "[9,25]", 1)),
		"no such kind": []byte(strings.Replace(string(safetensorsFile(map[string][]int64{"1_3": {1, 2}})), "I64", "I99", 1)),
	} {
		write("rank1.safetensors", bad)
		if _, err := ReadLoads(dir); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, want ErrFormat", name, err)
		}
	}
}

func FuzzParseLoads(f *testing.F) {
	for _, s := range []string{`{"logical_count": [[[1,2],[3,4]],[[1,2],[3,4]]]}`, `{"num_experts":2,"top_k":1,"layers":[0,7],"counts":[[1,2],[3,4]]}`,
		`{"demand":[[1,2]],"served":[[2,1]],"rigid":[[0,1]],"tokens":3,"top_k":1,"shapes":[{"mass":[1]}]}`, `{"logical_count": [[1, NaN]]}`} {
		f.Add([]byte(s))
	}
	f.Add(torchZip(tensorPickle(4, 0, 2, 2, 2, 1), map[string][]byte{"0": make([]byte, 16)}, zip.Store))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := ParseLoads(data)
		if err != nil {
			return
		}
		if err := l.Counts.Validate(); err != nil {
			t.Fatalf("accepted loads that are not valid: %v", err)
		}
	})
}

func FuzzUnpickle(f *testing.F) {
	f.Add([]byte(tensorPickle(4, 0, 2, 2, 2, 1)))
	f.Add([]byte("\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94]\x94(K\x01J\xff\xff\xff\xffM\x01\x00\x8a\x01\xffG\x00\x00\x00\x00\x00\x00\x00\x00eNs."))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := unpickle(data)
		if err == nil {
			if g, ok := v.(global); ok && !allowed(string(g)) {
				t.Fatalf("global %q got through", g)
			}
		}
	})
}

func FuzzSafetensors(f *testing.F) {
	f.Add(safetensorsFile(map[string][]int64{"100_3": {1, 2}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		sums := map[int][]float64{}
		if addSafetensors(sums, data, 2) == nil {
			for l, row := range sums {
				if len(row) != 2 || !(row[0] >= 0) || !(row[1] >= 0) {
					t.Fatalf("layer %d: %v", l, row)
				}
			}
		}
	})
}
