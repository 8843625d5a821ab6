package kernel

import "fmt"

// Input is rows of activations, as float32 and, once quantised, as 8-bit
// integers with one scale per 32 columns, which Q8_0 weights are multiplied
// with (the scheme of llama.cpp's CPU backend, but with a float32 scale).
type Input struct {
	Cols   int
	n      int // rows
	f      []float32
	q      []int16 // in [-127, 127]; int16, because that is what the product takes
	d      []float32
	stride int
}

// slack is how far the kernels may read beyond the last column of a row.
const slack = Lanes

// NewInput makes room for rows of cols columns each.
func NewInput(rows, cols int) *Input {
	x := &Input{Cols: cols, n: rows, stride: padded(cols) + slack}
	x.f = make([]float32, rows*x.stride)
	x.q = make([]int16, rows*x.stride)
	x.d = make([]float32, rows*x.blocks())
	return x
}

func (x *Input) blocks() int { return x.Cols/Block + slack }

// Row is row i, to be written.
func (x *Input) Row(i int) []float32 {
	return x.f[i*x.stride : i*x.stride+x.Cols : i*x.stride+x.Cols]
}

func (x *Input) quants(i int) []int16 { return x.q[i*x.stride : (i+1)*x.stride] }

func (x *Input) scales(i int) []float32 { return x.d[i*x.blocks() : (i+1)*x.blocks()] }

// Quantise makes the integers of row i. Cols must be a multiple of 32.
func (x *Input) Quantise(i int) {
	if useSIMD {
		quantiseSIMD(x.quants(i), x.scales(i), x.Row(i))
	} else {
		quantise(x.quants(i), x.scales(i), x.Row(i))
	}
}

// SIMD reports whether the vector kernels are built in and run on this machine.
func SIMD() bool { return useSIMD }

// Mul writes the product of m with the given rows of x: dst[j*stride+r] is
// m's row r times x's row rows[j]. It writes PaddedRows values per row, so
// stride must be at least that. For Q8_0 weights the rows must be quantised.
func (m *Matrix) Mul(dst []float32, stride int, x *Input, rows []int32) {
	m.MulPanels(dst, stride, x, rows, 0, m.Panels())
}

// Panels is the number of groups of eight rows that Mul can be split into.
func (m *Matrix) Panels() int { return padded(m.Rows) / Lanes }

// MulPanels is Mul for panels from up to, but not including, to. Calls for
// different panels may run at the same time.
func (m *Matrix) MulPanels(dst []float32, stride int, x *Input, rows []int32, from, to int) {
	if len(rows) == 0 || from >= to {
		return
	}
	m.check(len(dst), stride, x, rows, from, to)
	switch {
	case m.Quantised() && useSIMD:
		m.mulBlocksSIMD(dst, stride, x, rows, from, to)
	case m.Quantised():
		m.mulBlocks(dst, stride, x, rows, from, to)
	case useSIMD:
		m.mulFloatsSIMD(dst, stride, x, rows, from, to)
	default:
		m.mulFloats(dst, stride, x, rows, from, to)
	}
}

// check panics where a kernel would leave its memory.
func (m *Matrix) check(room, stride int, x *Input, rows []int32, from, to int) {
	if x.Cols != m.Cols || from < 0 || to > m.Panels() || (len(rows)-1)*stride+to*Lanes > room {
		panic(fmt.Sprintf("kernel: %d rows of %d columns times panels %d to %d of a %dx%d matrix into %d values",
			len(rows), x.Cols, from, to, m.Rows, m.Cols, room))
	}
	for _, r := range rows {
		if r < 0 || int(r) >= x.n {
			panic(fmt.Sprintf("kernel: row %d of %d", r, x.n))
		}
	}
}
