package gguf

import (
	"fmt"
	"math"
)

// Kinds of metadata values (gguf_metadata_value_type).
const (
	kindU8 = iota
	kindI8
	kindU16
	kindI16
	kindU32
	kindI32
	kindF32
	kindBool
	kindString
	kindArray
	kindU64
	kindI64
	kindF64
)

// widths are the bytes of one value, by kind; a string has at least its length.
var widths = [...]uint64{1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8}

func (d *decoder) value(kind uint32) (any, error) {
	switch kind {
	case kindString:
		return d.text(uint64(d.left))
	case kindArray:
		return d.array()
	}
	if int(kind) >= len(widths) {
		return nil, fmt.Errorf("%w: value of kind %d", ErrFormat, kind)
	}
	bits, err := d.bits(int(widths[kind]))
	if err != nil {
		return nil, err
	}
	return scalar(kind, bits), nil
}

// bits reads a number of n bytes.
func (d *decoder) bits(n int) (x uint64, err error) {
	b, err := d.bytes(n)
	if err != nil {
		return 0, err
	}
	for i, v := range b {
		x |= uint64(v) << (8 * i)
	}
	return x, nil
}

func scalar(kind uint32, x uint64) any {
	switch kind {
	case kindU8:
		return uint8(x)
	case kindI8:
		return int8(x)
	case kindU16:
		return uint16(x)
	case kindI16:
		return int16(x)
	case kindU32:
		return uint32(x)
	case kindI32:
		return int32(x)
	case kindF32:
		return math.Float32frombits(uint32(x))
	case kindBool:
		return x != 0
	case kindU64:
		return x
	case kindI64:
		return int64(x)
	}
	return math.Float64frombits(x)
}

// array reads an array of numbers or strings; nested arrays are refused, no
// model has them.
func (d *decoder) array() (any, error) {
	kind, err := d.u32()
	if err != nil {
		return nil, err
	}
	if int(kind) >= len(widths) || kind == kindArray {
		return nil, fmt.Errorf("%w: array of kind %d", ErrFormat, kind)
	}
	n, err := d.count("array elements", maxArray, widths[kind])
	if err != nil {
		return nil, err
	}
	switch kind {
	case kindU8:
		return elems[uint8](d, kind, n)
	case kindI8:
		return elems[int8](d, kind, n)
	case kindU16:
		return elems[uint16](d, kind, n)
	case kindI16:
		return elems[int16](d, kind, n)
	case kindU32:
		return elems[uint32](d, kind, n)
	case kindI32:
		return elems[int32](d, kind, n)
	case kindF32:
		return elems[float32](d, kind, n)
	case kindBool:
		return elems[bool](d, kind, n)
	case kindString:
		return elems[string](d, kind, n)
	case kindU64:
		return elems[uint64](d, kind, n)
	case kindI64:
		return elems[int64](d, kind, n)
	}
	return elems[float64](d, kind, n)
}

func elems[T any](d *decoder, kind uint32, n int) ([]T, error) {
	out := make([]T, n)
	for i := range out {
		v, err := d.value(kind)
		if err != nil {
			return nil, err
		}
		out[i] = v.(T)
	}
	return out, nil
}
