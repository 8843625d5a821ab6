package gguf_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"reflect"
	"testing"

	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/models"
	"pgregory.net/rapid"
)

func sample(t testing.TB) []byte {
	floats := func(kind gguf.Type, n int) func(io.Writer) error {
		return func(w io.Writer) error {
			values := make([]float32, n)
			for i := range values {
				values[i] = float32(i) / 8
			}
			raw, err := gguf.AppendFloats(nil, kind, values)
			if err != nil {
				return err
			}
			_, err = w.Write(raw)
			return err
		}
	}
	meta := []gguf.Entry{
		{Key: "general.architecture", Value: "llama"}, {Key: "u", Value: uint32(7)}, {Key: "i", Value: int32(-7)},
		{Key: "l", Value: uint64(1 << 40)}, {Key: "f", Value: float32(0.5)}, {Key: "b", Value: true},
		{Key: "s", Value: []string{"a", "", "bc"}}, {Key: "fs", Value: []float32{1, 2}}, {Key: "is", Value: []int32{3}},
	}
	var buf bytes.Buffer
	err := gguf.Write(&buf, meta, []gguf.Content{
		{Tensor: gguf.Tensor{Name: "a", Dims: []uint64{3}, Type: gguf.F32}, Data: floats(gguf.F32, 3)},
		{Tensor: gguf.Tensor{Name: "b", Dims: []uint64{3, 5}, Type: gguf.F16}, Data: floats(gguf.F16, 15)},
		{Tensor: gguf.Tensor{Name: "c", Dims: []uint64{32, 2}, Type: gguf.Q8_0}, Data: floats(gguf.Q8_0, 64)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func read(data []byte) (*gguf.File, error) {
	return gguf.Read(bytes.NewReader(data), int64(len(data)))
}

func TestRoundTrip(t *testing.T) {
	data := sample(t)
	f, err := read(data)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"u": uint32(7), "i": int32(-7), "l": uint64(1 << 40), "f": float32(0.5), "b": true,
		"s": []string{"a", "", "bc"}, "fs": []float32{1, 2}, "is": []int32{3}}
	for key, v := range want {
		if got := f.Value(key); !reflect.DeepEqual(got, v) {
			t.Errorf("%s = %v, want %v", key, got, v)
		}
	}
	if n, ok := f.Int("i"); n != -7 || !ok || f.Text("general.architecture") != "llama" {
		t.Error("typed access")
	}
	for name, n := range map[string]int{"a": 3, "b": 15, "c": 64} {
		tensor, ok := f.Tensor(name)
		if !ok {
			t.Fatalf("no tensor %s", name)
		}
		got, err := f.ReadFloats(bytes.NewReader(data), tensor)
		if err != nil || len(got) != n {
			t.Fatalf("%s: %d values, %v", name, len(got), err)
		}
		for i, x := range got {
			if math.Abs(float64(x)-float64(i)/8) > 0.04 {
				t.Errorf("%s[%d] = %v", name, i, x)
			}
		}
	}
}

func TestBundledModels(t *testing.T) {
	for name, params := range map[string]uint64{"hub-edge": 492_960, "hub-cloud": 5_192_448} {
		data, err := models.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := read(data)
		if err != nil {
			t.Fatal(err)
		}
		var sum uint64
		for _, tensor := range f.Tensors {
			sum += tensor.Elems()
			values, err := f.ReadFloats(bytes.NewReader(data), tensor)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range values {
				if x != x || x > 100 || x < -100 {
					t.Fatalf("%s: %s holds %v", name, tensor.Name, x)
				}
			}
		}
		if sum != params {
			t.Errorf("%s: %d parameters, want %d", name, sum, params)
		}
		if tokens, _ := f.Value("tokenizer.ggml.tokens").([]string); len(tokens) != 259 {
			t.Errorf("%s: %d tokens", name, len(tokens))
		}
	}
}

func TestReadRefuses(t *testing.T) {
	data := sample(t)
	patch := func(at int, b ...byte) []byte {
		out := bytes.Clone(data)
		copy(out[at:], b)
		return out
	}
	cases := map[string][]byte{
		"empty":            nil,
		"text":             []byte("this is not a model, whatever its name says"),
		"version":          patch(4, 1),
		"big-endian":       patch(4, 0, 0, 0, 3),
		"too many tensors": patch(8, 0xff, 0xff, 0xff, 0xff),
		"too many entries": patch(16, 0xff, 0xff, 0xff, 0xff),
		"long key":         patch(24, 0xff, 0xff, 0xff, 0x7f),
		"cut in the data":  data[:len(data)-40],
		"cut in the head":  data[:60],
	}
	for name, bad := range cases {
		if _, err := read(bad); !errors.Is(err, gguf.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	none := func(io.Writer) error { return nil }
	if gguf.Write(io.Discard, []gguf.Entry{{Key: "k", Value: struct{}{}}}, nil) == nil {
		t.Error("a value of no GGUF kind: no error")
	}
	if gguf.Write(io.Discard, nil, []gguf.Content{{Tensor: gguf.Tensor{Name: "t", Dims: []uint64{4}}, Data: none}}) == nil {
		t.Error("a tensor without its data: no error")
	}
	if gguf.Write(io.Discard, nil, []gguf.Content{{Tensor: gguf.Tensor{Name: "t", Dims: []uint64{5}, Type: gguf.Q8_0}, Data: none}}) == nil {
		t.Error("half a block: no error")
	}
}

// Every half is exact in float32, so each must come back, but for the payload
// of a not-a-number.
func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		x := gguf.FromHalf(uint16(h))
		if got := gguf.ToHalf(x); got != uint16(h) && x == x {
			t.Fatalf("%#04x is %v, which is %#04x", h, x, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Float32Range(-65504, 65504).Draw(t, "x")
		y := gguf.FromHalf(gguf.ToHalf(x))
		if d := math.Abs(float64(x - y)); d > math.Max(math.Abs(float64(x))/2048, 1.0/(1<<25)) {
			t.Fatalf("%v became %v", x, y)
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add(sample(f))
	f.Add(sample(f)[:100])
	f.Add([]byte("GGUF\x03\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := read(data)
		if err != nil {
			if !errors.Is(err, gguf.ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		for _, tensor := range file.Tensors {
			if _, ok := tensor.Size(); !ok {
				continue
			}
			if _, err := file.ReadRaw(bytes.NewReader(data), tensor); err != nil {
				t.Errorf("tensor %q passed the check: %v", tensor.Name, err)
			}
		}
	})
}
