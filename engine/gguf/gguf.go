// Package gguf reads and writes model files in the GGUF format, versions 2 and
// 3, little-endian: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
// The reader trusts no number in a file.
package gguf

import (
	"errors"
	"fmt"
	"math"
)

// ErrFormat says that bytes are not a GGUF file that this package reads.
var ErrFormat = errors.New("not a valid GGUF file")

// Bounds on what a file may hold; real files stay far below.
const (
	maxEntries   = 1 << 16 // metadata entries, and tensors
	maxKey       = 1 << 16 // bytes of a key or a tensor's name
	maxDims      = 4
	maxArray     = 1 << 24 // elements of a metadata array
	maxAlignment = 1 << 16
)

// Type is the element type of a tensor (ggml_type).
type Type uint32

// The types that ReadFloats decodes.
const (
	F32  Type = 0
	F16  Type = 1
	Q8_0 Type = 8
)

// blocks gives elements and bytes per block of the types in common use.
var blocks = map[Type]struct{ elems, bytes uint64 }{
	F32: {1, 4}, F16: {1, 2}, Q8_0: {32, 34},
	2: {32, 18}, 3: {32, 20}, 6: {32, 22}, 7: {32, 24}, 9: {32, 36}, // Q4_0 Q4_1 Q5_0 Q5_1 Q8_1
	10: {256, 84}, 11: {256, 110}, 12: {256, 144}, 13: {256, 176}, 14: {256, 210}, 15: {256, 292}, // Q2_K to Q8_K
	24: {1, 1}, 25: {1, 2}, 26: {1, 4}, 27: {1, 8}, 28: {1, 8}, 30: {1, 2}, // I8 I16 I32 I64 F64 BF16
}

// String names the types that ReadFloats decodes.
func (t Type) String() string {
	switch t {
	case F32:
		return "F32"
	case F16:
		return "F16"
	case Q8_0:
		return "Q8_0"
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Entry is one metadata entry. Value is a uint8, int8, uint16, int16, uint32,
// int32, uint64, int64, float32, float64, bool, string, or a slice of one of
// them.
type Entry struct {
	Key   string
	Value any
}

// Tensor describes one tensor. Dims counts elements, the fastest-moving
// dimension first: a matrix of r rows and c columns has Dims {c, r}.
type Tensor struct {
	Name   string
	Dims   []uint64
	Type   Type
	Offset uint64 // bytes from the start of the file's data section
}

// Elems is the number of elements.
func (t Tensor) Elems() uint64 {
	n := uint64(1)
	for _, d := range t.Dims {
		n *= d
	}
	return n
}

// Size is the tensor's length in bytes; ok is false for a type whose blocks
// this package does not know, or dimensions that do not fit.
func (t Tensor) Size() (n uint64, ok bool) {
	b, known := blocks[t.Type]
	if !known || len(t.Dims) == 0 || t.Dims[0]%b.elems != 0 {
		return 0, false
	}
	n = t.Dims[0] / b.elems * b.bytes
	for _, d := range t.Dims[1:] {
		if d == 0 || n > math.MaxInt64/d {
			return 0, false
		}
		n *= d
	}
	return n, true
}

// File is the head of a GGUF file.
type File struct {
	Version    uint32
	Meta       []Entry
	Tensors    []Tensor
	DataOffset int64 // where tensor data starts
	Alignment  uint32
}

// Value returns the metadata value of key, or nil.
func (f *File) Value(key string) any {
	for _, e := range f.Meta {
		if e.Key == key {
			return e.Value
		}
	}
	return nil
}

// Int returns an integer entry of any width; ok is false where there is none.
func (f *File) Int(key string) (n int64, ok bool) {
	switch v := f.Value(key).(type) {
	case uint8:
		return int64(v), true
	case int8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case int16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int32:
		return int64(v), true
	case uint64:
		return int64(v), v <= math.MaxInt64
	case int64:
		return v, true
	}
	return 0, false
}

// Float returns a floating-point entry; ok is false where there is none.
func (f *File) Float(key string) (x float64, ok bool) {
	switch v := f.Value(key).(type) {
	case float32:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// Text returns a string entry, empty where there is none.
func (f *File) Text(key string) string {
	s, _ := f.Value(key).(string)
	return s
}

// Tensor finds a tensor by name.
func (f *File) Tensor(name string) (Tensor, bool) {
	for _, t := range f.Tensors {
		if t.Name == name {
			return t, true
		}
	}
	return Tensor{}, false
}
