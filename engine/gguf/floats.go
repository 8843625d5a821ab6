package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// ReadRaw reads a tensor's bytes as they stand in the file.
func (f *File) ReadRaw(r io.ReaderAt, t Tensor) ([]byte, error) {
	n, ok := t.Size()
	if !ok {
		return nil, fmt.Errorf("%w: tensor %q: size of %s is not known", ErrFormat, t.Name, t.Type)
	}
	raw := make([]byte, n)
	if _, err := r.ReadAt(raw, f.DataOffset+int64(t.Offset)); err != nil {
		return nil, fmt.Errorf("read tensor %q: %w", t.Name, err)
	}
	return raw, nil
}

// ReadFloats reads a tensor of type F32, F16 or Q8_0 as float32, row by row.
func (f *File) ReadFloats(r io.ReaderAt, t Tensor) ([]float32, error) {
	if t.Type != F32 && t.Type != F16 && t.Type != Q8_0 {
		return nil, fmt.Errorf("%w: tensor %q: %s cannot be decoded", ErrFormat, t.Name, t.Type)
	}
	raw, err := f.ReadRaw(r, t)
	if err != nil {
		return nil, err
	}
	return appendFloats(make([]float32, 0, t.Elems()), t.Type, raw), nil
}

// appendFloats decodes whole blocks. A Q8_0 block is an F16 scale and 32 signed
// bytes to multiply with it.
func appendFloats(dst []float32, kind Type, raw []byte) []float32 {
	le := binary.LittleEndian
	switch kind {
	case F32:
		for ; len(raw) >= 4; raw = raw[4:] {
			dst = append(dst, math.Float32frombits(le.Uint32(raw)))
		}
	case F16:
		for ; len(raw) >= 2; raw = raw[2:] {
			dst = append(dst, FromHalf(le.Uint16(raw)))
		}
	case Q8_0:
		for ; len(raw) >= 34; raw = raw[34:] {
			scale := FromHalf(le.Uint16(raw))
			for _, q := range raw[2:34] {
				dst = append(dst, scale*float32(int8(q)))
			}
		}
	}
	return dst
}

// AppendFloats encodes values as F32, F16 or Q8_0; for Q8_0 their number is a
// multiple of 32.
func AppendFloats(dst []byte, kind Type, values []float32) ([]byte, error) {
	le := binary.LittleEndian
	switch kind {
	case F32:
		for _, x := range values {
			dst = le.AppendUint32(dst, math.Float32bits(x))
		}
	case F16:
		for _, x := range values {
			dst = le.AppendUint16(dst, ToHalf(x))
		}
	case Q8_0:
		if len(values)%32 != 0 {
			return dst, fmt.Errorf("Q8_0 needs a multiple of 32 values, got %d", len(values))
		}
		for ; len(values) > 0; values = values[32:] {
			dst = appendBlock(dst, values[:32])
		}
	default:
		return dst, fmt.Errorf("%s cannot be encoded", kind)
	}
	return dst, nil
}

// appendBlock encodes 32 values as a Q8_0 block.
func appendBlock(dst []byte, values []float32) []byte {
	var peak float32
	for _, x := range values {
		peak = max(peak, float32(math.Abs(float64(x))))
	}
	scale := peak / 127
	dst = binary.LittleEndian.AppendUint16(dst, ToHalf(scale))
	for _, x := range values {
		q := 0.0
		if scale > 0 {
			q = math.RoundToEven(float64(x / scale))
		}
		dst = append(dst, byte(int8(q)))
	}
	return dst
}

// ToHalf rounds x to IEEE 754 half precision, ties to even.
func ToHalf(x float32) uint16 {
	b := math.Float32bits(x)
	sign, exp, frac := uint16(b>>16)&0x8000, int(b>>23)&0xff-112, b&0x7fffff
	switch {
	case exp == 255-112: // infinity or not a number
		if frac != 0 {
			return sign | 0x7e00
		}
		return sign | 0x7c00
	case exp >= 31:
		return sign | 0x7c00
	case exp < -10:
		return sign
	case exp <= 0: // subnormal
		return sign | roundShift(frac|0x800000, uint(14-exp))
	}
	return sign | roundShift(uint32(exp)<<23|frac, 13) // a carry moves into the exponent
}

// roundShift is x >> n, rounded to nearest, ties to even.
func roundShift(x uint32, n uint) uint16 {
	half := uint32(1)<<(n-1) - 1 + x>>n&1
	return uint16((x + half) >> n)
}

// FromHalf is the value of an IEEE 754 half.
func FromHalf(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&0x3ff
	switch exp {
	case 0:
		x := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(x) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}
