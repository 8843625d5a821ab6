package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
)

func float32frombytes(b []byte) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

// AppendBytes appends the packed weights, little-endian, for a copy of the
// matrix elsewhere. Shape and kind are not part of it.
func (m *Matrix) AppendBytes(dst []byte) []byte {
	for _, part := range [][]float32{m.F, m.D} {
		for _, x := range part {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(x))
		}
	}
	for _, q := range m.Q {
		dst = append(dst, byte(q))
	}
	return dst
}

// FromBytes makes a matrix of m's shape and kind from what AppendBytes gave,
// and returns the bytes that follow.
func (m *Matrix) FromBytes(src []byte) (Matrix, []byte, error) {
	if len(src) < m.Bytes() {
		return Matrix{}, nil, fmt.Errorf("%w: %d bytes, want %d", ErrShape, len(src), m.Bytes())
	}
	out := Matrix{Rows: m.Rows, Cols: m.Cols}
	out.F, src = takeFloats(src, len(m.F))
	out.D, src = takeFloats(src, len(m.D))
	if m.Q != nil {
		out.Q = make([]int8, len(m.Q))
		for i := range out.Q {
			out.Q[i] = int8(src[i])
		}
		src = src[len(out.Q):]
	}
	return out, src, nil
}

func takeFloats(src []byte, n int) ([]float32, []byte) {
	if n == 0 {
		return nil, src
	}
	out := make([]float32, n)
	for i := range out {
		out[i] = float32frombytes(src[4*i:])
	}
	return out, src[4*n:]
}
