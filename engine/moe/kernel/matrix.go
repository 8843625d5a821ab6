package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weirhq/weir/engine/gguf"
)

// ErrShape says that a matrix has sizes that the kernels cannot take.
var ErrShape = errors.New("matrix shape does not fit the kernels")

// Matrix is a weight matrix in panels of eight rows, so that a vector holds one
// column of a panel and no sum runs across lanes. Rows are padded with zeros
// to whole panels. Either F or Q and D hold the weights.
type Matrix struct {
	Rows, Cols int
	F          []float32 // [panel][column][row of panel]
	Q          []int8    // [panel][pair of columns][row of panel][2]
	D          []float32 // scales: [panel][block of 32 columns][row of panel]
}

// Pack makes a matrix from tensor data as it stands in a GGUF file, row after
// row. F16 becomes float32. Columns must be a multiple of 8, for Q8_0 of 32.
func Pack(kind gguf.Type, rows, cols int, raw []byte) (Matrix, error) {
	size, ok := gguf.Tensor{Dims: []uint64{uint64(cols), uint64(rows)}, Type: kind}.Size()
	if rows < 1 || cols < 1 || !ok || size != uint64(len(raw)) {
		return Matrix{}, fmt.Errorf("%w: %d bytes for %d rows of %d %s columns", ErrShape, len(raw), rows, cols, kind)
	}
	if cols%Lanes != 0 {
		return Matrix{}, fmt.Errorf("%w: %d columns, want a multiple of %d", ErrShape, cols, Lanes)
	}
	m := Matrix{Rows: rows, Cols: cols}
	switch kind {
	case gguf.F32, gguf.F16:
		m.F = make([]float32, padded(rows)*cols)
		m.packFloats(kind, raw)
	case gguf.Q8_0:
		m.Q = make([]int8, padded(rows)*cols)
		m.D = make([]float32, padded(rows)*cols/Block)
		m.packBlocks(raw)
	default:
		return Matrix{}, fmt.Errorf("%w: weights of %s, want F32, F16 or Q8_0", ErrShape, kind)
	}
	return m, nil
}

func (m *Matrix) packFloats(kind gguf.Type, raw []byte) {
	for r := range m.Rows {
		panel := m.F[r/Lanes*Lanes*m.Cols:]
		for c := range m.Cols {
			i := r*m.Cols + c
			var x float32
			if kind == gguf.F16 {
				x = gguf.FromHalf(binary.LittleEndian.Uint16(raw[2*i:]))
			} else {
				x = float32frombytes(raw[4*i:])
			}
			panel[c*Lanes+r%Lanes] = x
		}
	}
}

// packBlocks takes Q8_0 blocks: an F16 scale and 32 signed bytes.
func (m *Matrix) packBlocks(raw []byte) {
	const size = 2 + Block
	for r := range m.Rows {
		panel := m.Q[r/Lanes*Lanes*m.Cols:]
		scales := m.D[r/Lanes*Lanes*m.Cols/Block:]
		for b := range m.Cols / Block {
			block := raw[(r*m.Cols/Block+b)*size:]
			scales[b*Lanes+r%Lanes] = gguf.FromHalf(binary.LittleEndian.Uint16(block))
			for i, q := range block[2:size] {
				c := b*Block + i
				panel[c/2*2*Lanes+r%Lanes*2+c%2] = int8(q)
			}
		}
	}
}

// Quantised reports whether the weights are Q8_0.
func (m *Matrix) Quantised() bool { return m.Q != nil }

// PaddedRows is the number of values that Mul writes per row of the input.
func (m *Matrix) PaddedRows() int { return padded(m.Rows) }

// Bytes is the memory that the weights take.
func (m *Matrix) Bytes() int { return 4*len(m.F) + len(m.Q) + 4*len(m.D) }

// Row writes row r as float32 into dst, of Cols values.
func (m *Matrix) Row(dst []float32, r int) {
	if m.Quantised() {
		panel, scales := m.Q[r/Lanes*Lanes*m.Cols:], m.D[r/Lanes*Lanes*m.Cols/Block:]
		for c := range m.Cols {
			q := panel[c/2*2*Lanes+r%Lanes*2+c%2]
			dst[c] = float32(q) * scales[c/Block*Lanes+r%Lanes]
		}
		return
	}
	panel := m.F[r/Lanes*Lanes*m.Cols:]
	for c := range m.Cols {
		dst[c] = panel[c*Lanes+r%Lanes]
	}
}
