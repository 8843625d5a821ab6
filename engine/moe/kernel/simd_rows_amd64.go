//go:build goexperiment.simd && amd64

package kernel

import (
	"simd/archsimd"
	"unsafe"
)

//go:norace
//go:nocheckptr
func quantiseSIMD(q []int16, d, x []float32) {
	magnitude := archsimd.BroadcastInt32x8(0x7fffffff)
	magic := archsimd.BroadcastFloat32x8(round)
	for b := range len(x) / Block {
		block := x[b*Block : (b+1)*Block]
		var peaks [Lanes]float32
		top := load(block, 0).AsInt32x8().And(magnitude).AsFloat32x8()
		for i := Lanes; i < Block; i += Lanes {
			top = top.Max(load(block, i).AsInt32x8().And(magnitude).AsFloat32x8())
		}
		top.Store(&peaks)
		peak := max(peaks[0], peaks[1], peaks[2], peaks[3], peaks[4], peaks[5], peaks[6], peaks[7])
		var inverse float32
		if peak > 0 {
			inverse = 127 / peak
		}
		d[b] = peak / 127
		factor := archsimd.BroadcastFloat32x8(inverse)
		for i := 0; i < Block; i += Lanes {
			v := load(block, i).Mul(factor).Add(magic).Sub(magic).ConvertToInt32()
			v.GetLo().SaturateToInt16Concat(v.GetHi()).Store((*[8]int16)(q[b*Block+i:]))
		}
	}
	archsimd.ClearAVXUpperBits()
}

func squaresSIMD(x []float32) float32 {
	var s archsimd.Float32x8
	for ; len(x) >= Lanes; x = x[Lanes:] {
		v := load(x, 0)
		s = s.Add(v.Mul(v))
	}
	return foldSIMD(s)
}

func foldSIMD(s archsimd.Float32x8) float32 {
	var a [Lanes]float32
	s.Store(&a)
	archsimd.ClearAVXUpperBits()
	return fold(&a)
}

func scaleBySIMD(dst, x, w []float32, scale float32) {
	f := archsimd.BroadcastFloat32x8(scale)
	for i := 0; i < len(x); i += Lanes {
		store(load(x, i).Mul(f).Mul(load(w, i)), dst, i)
	}
	archsimd.ClearAVXUpperBits()
}

func addToSIMD(dst, x []float32) {
	for i := 0; i < len(x); i += Lanes {
		store(load(dst, i).Add(load(x, i)), dst, i)
	}
	archsimd.ClearAVXUpperBits()
}

func addScaledSIMD(dst, x []float32, f float32) {
	v := archsimd.BroadcastFloat32x8(f)
	for i := 0; i < len(x); i += Lanes {
		store(load(dst, i).Add(load(x, i).Mul(v)), dst, i)
	}
	archsimd.ClearAVXUpperBits()
}

// expSIMD is exp in eight lanes.
func expSIMD(x archsimd.Float32x8) archsimd.Float32x8 {
	b := archsimd.BroadcastFloat32x8
	x = x.Min(b(expMax)).Max(b(expMin))
	magic := b(round)
	t := x.Mul(b(log2e)).Add(magic)
	n := t.Sub(magic)
	r := x.Sub(n.Mul(b(ln2Hi))).Sub(n.Mul(b(ln2Lo)))
	y := r.Mul(b(exp5)).Add(b(exp4))
	y = y.Mul(r).Add(b(exp3))
	y = y.Mul(r).Add(b(exp2))
	y = y.Mul(r).Add(b(exp1))
	y = y.Mul(r).Add(b(exp0))
	y = y.Mul(r.Mul(r)).Add(r).Add(b(1))
	return y.AsInt32x8().Add(t.AsInt32x8().ShiftAllLeft(23)).AsFloat32x8()
}

func gateSIMD(dst, g, u []float32) {
	one, sign := archsimd.BroadcastFloat32x8(1), archsimd.BroadcastInt32x8(-1<<31)
	for i := 0; i < len(g); i += Lanes {
		v := load(g, i)
		minus := v.AsInt32x8().Xor(sign).AsFloat32x8()
		store(v.Div(one.Add(expSIMD(minus))).Mul(load(u, i)), dst, i)
	}
	archsimd.ClearAVXUpperBits()
}

func expSubSIMD(x []float32, top float32) float32 {
	var s archsimd.Float32x8
	t := archsimd.BroadcastFloat32x8(top)
	for i := 0; i < len(x); i += Lanes {
		e := expSIMD(load(x, i).Sub(t))
		store(e, x, i)
		s = s.Add(e)
	}
	return foldSIMD(s)
}

// load and store check bounds; where that would cost, the loops do not use them.
func load(x []float32, i int) archsimd.Float32x8 {
	return archsimd.LoadFloat32x8((*[8]float32)(x[i:]))
}

func store(v archsimd.Float32x8, dst []float32, i int) { v.Store((*[8]float32)(dst[i:])) }

//go:norace
//go:nocheckptr
func scoresSIMD(dst *[Page]float32, q, keys []float32, scale float32) {
	var s0, s1, s2, s3 archsimd.Float32x8
	k := unsafe.Pointer(unsafe.SliceData(keys[:len(q)*Page]))
	for d, x := range q {
		v, at := archsimd.BroadcastFloat32x8(x), d*4*Page
		s0 = s0.Add(f32(k, at).Mul(v))
		s1 = s1.Add(f32(k, at+floatLine).Mul(v))
		s2 = s2.Add(f32(k, at+2*floatLine).Mul(v))
		s3 = s3.Add(f32(k, at+3*floatLine).Mul(v))
	}
	f, to := archsimd.BroadcastFloat32x8(scale), unsafe.Pointer(dst)
	put(s0.Mul(f), to, 0)
	put(s1.Mul(f), to, floatLine)
	put(s2.Mul(f), to, 2*floatLine)
	put(s3.Mul(f), to, 3*floatLine)
	archsimd.ClearAVXUpperBits()
}

func mixSIMD(dst, weights, values []float32, n int) {
	width := len(dst)
	if n == 0 {
		return
	}
	w := unsafe.Pointer(unsafe.SliceData(weights[:n+3]))
	v := unsafe.Pointer(unsafe.SliceData(values[:n*width]))
	to := unsafe.Pointer(unsafe.SliceData(dst))
	i := 0
	for ; width-i >= 4*Lanes; i += 4 * Lanes {
		mix4(unsafe.Add(to, 4*i), w, unsafe.Add(v, 4*i), 4*width, n)
	}
	for ; i < width; i += Lanes {
		s := load(dst, i)
		for p := range n {
			s = s.Add(load(values, p*width+i).Mul(f32all(w, 4*p)))
		}
		store(s, dst, i)
	}
	archsimd.ClearAVXUpperBits()
}

// mix4 adds 32 dimensions of n values; stride is in bytes.
//
//go:norace
//go:nocheckptr
func mix4(dst, w, v unsafe.Pointer, stride, n int) {
	s0, s1, s2, s3 := f32(dst, 0), f32(dst, floatLine), f32(dst, 2*floatLine), f32(dst, 3*floatLine)
	for p := range n {
		x, at := f32all(w, 4*p), p*stride
		s0 = s0.Add(f32(v, at).Mul(x))
		s1 = s1.Add(f32(v, at+floatLine).Mul(x))
		s2 = s2.Add(f32(v, at+2*floatLine).Mul(x))
		s3 = s3.Add(f32(v, at+3*floatLine).Mul(x))
	}
	put(s0, dst, 0)
	put(s1, dst, floatLine)
	put(s2, dst, 2*floatLine)
	put(s3, dst, 3*floatLine)
}
