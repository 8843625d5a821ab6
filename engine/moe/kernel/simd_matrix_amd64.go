//go:build goexperiment.simd && amd64

package kernel

import (
	"simd/archsimd"
	"unsafe"
)

var useSIMD = archsimd.X86.AVX2()

// The loops below address memory without bounds checks, which cost as much as
// the arithmetic: MulPanels has checked the sizes. They add offsets to a base
// and never step a pointer, which would leave its object after the last round;
// the garbage collector does not forgive that. Up to four input rows meet
// a panel at once, so that each load of weights serves four rows; a single row
// meets four panels, so that four sums are in flight. The order of each sum is
// the same in both. Under the race detector each load would be checked, which
// makes them twenty times slower, so the inner loops are exempt.

// f32 loads eight values from p.
func f32(p unsafe.Pointer, offset int) archsimd.Float32x8 {
	return archsimd.LoadFloat32x8((*[8]float32)(unsafe.Add(p, offset)))
}

// f32all puts the value at p into all lanes. It reads four values.
func f32all(p unsafe.Pointer, offset int) archsimd.Float32x8 {
	return archsimd.LoadFloat32x4((*[4]float32)(unsafe.Add(p, offset))).Broadcast1To8()
}

// pairAll puts the pair of quanta at p into all lanes. It reads four pairs.
func pairAll(p unsafe.Pointer, offset int) archsimd.Int16x16 {
	return archsimd.LoadInt32x4((*[4]int32)(unsafe.Add(p, offset))).Broadcast1To8().AsInt16x16()
}

// pairs loads a pair of columns of a panel of Q8_0 weights.
func pairs(p unsafe.Pointer, offset int) archsimd.Int16x16 {
	return archsimd.LoadInt8x16((*[16]int8)(unsafe.Add(p, offset))).ExtendToInt16()
}

func put(v archsimd.Float32x8, p unsafe.Pointer, offset int) {
	v.Store((*[8]float32)(unsafe.Add(p, offset)))
}

const (
	floatLine = 4 * Lanes // bytes of a column of a panel of floats
	pairLine  = 2 * Lanes // bytes of a pair of columns of a panel of quanta
)

func at(x []float32, i int) unsafe.Pointer { return unsafe.Pointer(&x[i]) }

func (m *Matrix) mulFloatsSIMD(dst []float32, stride int, x *Input, rows []int32, from, to int) {
	size := Lanes * m.Cols
	row := func(j int) unsafe.Pointer { return at(x.f, int(rows[j])*x.stride) }
	j := 0
	for ; len(rows)-j >= 4; j += 4 {
		for p := from; p < to; p++ {
			floats4(at(dst, j*stride+p*Lanes), 4*stride, at(m.F, p*size), m.Cols, row(j), row(j+1), row(j+2), row(j+3))
		}
	}
	for ; j < len(rows); j++ {
		p := from
		for ; to-p >= 4; p += 4 {
			floats1(at(dst, j*stride+p*Lanes), at(m.F, p*size), row(j), m.Cols)
		}
		for ; p < to; p++ {
			floatsLast(at(dst, j*stride+p*Lanes), at(m.F, p*size), row(j), m.Cols)
		}
	}
	archsimd.ClearAVXUpperBits()
}

// floats4 multiplies one panel with four rows; stride is in bytes.
//
//go:norace
//go:nocheckptr
func floats4(dst unsafe.Pointer, stride int, w unsafe.Pointer, cols int, a, b, c, d unsafe.Pointer) {
	var s0, s1, s2, s3 archsimd.Float32x8
	for i := 0; i < 4*cols; i += 4 {
		v := f32(w, i*Lanes)
		s0 = s0.Add(v.Mul(f32all(a, i)))
		s1 = s1.Add(v.Mul(f32all(b, i)))
		s2 = s2.Add(v.Mul(f32all(c, i)))
		s3 = s3.Add(v.Mul(f32all(d, i)))
	}
	put(s0, dst, 0)
	put(s1, dst, stride)
	put(s2, dst, 2*stride)
	put(s3, dst, 3*stride)
}

// floats1 multiplies four panels with one row.
//
//go:norace
//go:nocheckptr
func floats1(dst, w, a unsafe.Pointer, cols int) {
	var s0, s1, s2, s3 archsimd.Float32x8
	w1, w2, w3 := unsafe.Add(w, cols*floatLine), unsafe.Add(w, 2*cols*floatLine), unsafe.Add(w, 3*cols*floatLine)
	for i := 0; i < 4*cols; i += 4 {
		v := f32all(a, i)
		s0 = s0.Add(f32(w, i*Lanes).Mul(v))
		s1 = s1.Add(f32(w1, i*Lanes).Mul(v))
		s2 = s2.Add(f32(w2, i*Lanes).Mul(v))
		s3 = s3.Add(f32(w3, i*Lanes).Mul(v))
	}
	put(s0, dst, 0)
	put(s1, dst, floatLine)
	put(s2, dst, 2*floatLine)
	put(s3, dst, 3*floatLine)
}

//go:norace
//go:nocheckptr
func floatsLast(dst, w, a unsafe.Pointer, cols int) {
	var s archsimd.Float32x8
	for i := 0; i < 4*cols; i += 4 {
		s = s.Add(f32(w, i*Lanes).Mul(f32all(a, i)))
	}
	put(s, dst, 0)
}

// quants is a row of an Input as the kernels read it.
type quants struct {
	q unsafe.Pointer // int16
	d unsafe.Pointer // float32, padded by three
}

func (x *Input) at(i int32) quants {
	return quants{unsafe.Pointer(&x.q[int(i)*x.stride]), unsafe.Pointer(&x.d[int(i)*x.blocks()])}
}

func (m *Matrix) mulBlocksSIMD(dst []float32, stride int, x *Input, rows []int32, from, to int) {
	size, scales := Lanes*m.Cols, Lanes*m.Cols/Block
	blocks := m.Cols / Block
	j := 0
	for ; len(rows)-j >= 4; j += 4 {
		a, b, c, d := x.at(rows[j]), x.at(rows[j+1]), x.at(rows[j+2]), x.at(rows[j+3])
		for p := from; p < to; p++ {
			blocks4(at(dst, j*stride+p*Lanes), 4*stride, unsafe.Pointer(&m.Q[p*size]), at(m.D, p*scales), blocks, a, b, c, d)
		}
	}
	for ; j < len(rows); j++ {
		a, p := x.at(rows[j]), from
		for ; to-p >= 4; p += 4 {
			blocks1(at(dst, j*stride+p*Lanes), unsafe.Pointer(&m.Q[p*size]), at(m.D, p*scales), blocks, a)
		}
		for ; p < to; p++ {
			blocksLast(at(dst, j*stride+p*Lanes), unsafe.Pointer(&m.Q[p*size]), at(m.D, p*scales), blocks, a)
		}
	}
	archsimd.ClearAVXUpperBits()
}

// blocks4 multiplies one panel with four rows; stride is in bytes.
//
//go:norace
//go:nocheckptr
func blocks4(dst unsafe.Pointer, stride int, w, scales unsafe.Pointer, blocks int, a, b, c, d quants) {
	var f0, f1, f2, f3 archsimd.Float32x8
	for n := range blocks {
		var s0, s1, s2, s3 archsimd.Int32x8
		for i := 2 * Block * n; i < 2*Block*(n+1); i += 4 { // bytes of quanta: four per pair
			v := pairs(w, i*pairLine/4)
			s0 = s0.Add(v.DotProductPairs(pairAll(a.q, i)))
			s1 = s1.Add(v.DotProductPairs(pairAll(b.q, i)))
			s2 = s2.Add(v.DotProductPairs(pairAll(c.q, i)))
			s3 = s3.Add(v.DotProductPairs(pairAll(d.q, i)))
		}
		v := f32(scales, n*floatLine)
		f0 = f0.Add(s0.ConvertToFloat32().Mul(v.Mul(f32all(a.d, 4*n))))
		f1 = f1.Add(s1.ConvertToFloat32().Mul(v.Mul(f32all(b.d, 4*n))))
		f2 = f2.Add(s2.ConvertToFloat32().Mul(v.Mul(f32all(c.d, 4*n))))
		f3 = f3.Add(s3.ConvertToFloat32().Mul(v.Mul(f32all(d.d, 4*n))))
	}
	put(f0, dst, 0)
	put(f1, dst, stride)
	put(f2, dst, 2*stride)
	put(f3, dst, 3*stride)
}

// blocks1 multiplies four panels with one row.
//
//go:norace
//go:nocheckptr
func blocks1(dst, w, scales unsafe.Pointer, blocks int, a quants) {
	var f0, f1, f2, f3 archsimd.Float32x8
	size, line := blocks*Block*Lanes, blocks*floatLine
	w1, w2, w3 := unsafe.Add(w, size), unsafe.Add(w, 2*size), unsafe.Add(w, 3*size)
	for n := range blocks {
		var s0, s1, s2, s3 archsimd.Int32x8
		for i := 2 * Block * n; i < 2*Block*(n+1); i += 4 {
			v, j := pairAll(a.q, i), i*pairLine/4
			s0 = s0.Add(pairs(w, j).DotProductPairs(v))
			s1 = s1.Add(pairs(w1, j).DotProductPairs(v))
			s2 = s2.Add(pairs(w2, j).DotProductPairs(v))
			s3 = s3.Add(pairs(w3, j).DotProductPairs(v))
		}
		v, j := f32all(a.d, 4*n), n*floatLine
		f0 = f0.Add(s0.ConvertToFloat32().Mul(f32(scales, j).Mul(v)))
		f1 = f1.Add(s1.ConvertToFloat32().Mul(f32(scales, line+j).Mul(v)))
		f2 = f2.Add(s2.ConvertToFloat32().Mul(f32(scales, 2*line+j).Mul(v)))
		f3 = f3.Add(s3.ConvertToFloat32().Mul(f32(scales, 3*line+j).Mul(v)))
	}
	put(f0, dst, 0)
	put(f1, dst, floatLine)
	put(f2, dst, 2*floatLine)
	put(f3, dst, 3*floatLine)
}

//go:norace
//go:nocheckptr
func blocksLast(dst, w, scales unsafe.Pointer, blocks int, a quants) {
	var f archsimd.Float32x8
	for n := range blocks {
		var s archsimd.Int32x8
		for i := 2 * Block * n; i < 2*Block*(n+1); i += 4 {
			s = s.Add(pairs(w, i*pairLine/4).DotProductPairs(pairAll(a.q, i)))
		}
		f = f.Add(s.ConvertToFloat32().Mul(f32(scales, n*floatLine).Mul(f32all(a.d, 4*n))))
	}
	put(f, dst, 0)
}
