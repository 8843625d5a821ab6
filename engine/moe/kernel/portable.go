package kernel

import "math"

// The conversions float32(a*b) keep compilers from fusing products and sums,
// which some processors would round differently.

// round is half of the integers in float32's exact range: adding and
// subtracting it rounds to the nearest integer, ties to even.
const round = 3 << 22

//go:norace
func quantise(q []int16, d, x []float32) {
	for b := range len(x) / Block {
		block := x[b*Block : (b+1)*Block]
		var peak float32
		for _, v := range block {
			peak = max(peak, math.Float32frombits(math.Float32bits(v)&^(1<<31)))
		}
		var inverse float32
		if peak > 0 {
			inverse = 127 / peak
		}
		d[b] = peak / 127
		for i, v := range block {
			q[b*Block+i] = int16(int32((float32(v*inverse) + round) - round))
		}
	}
}

func (m *Matrix) mulFloats(dst []float32, stride int, x *Input, rows []int32, from, to int) {
	for p := from; p < to; p++ {
		panel := m.F[p*Lanes*m.Cols : (p+1)*Lanes*m.Cols]
		for j, row := range rows {
			acc := floatSums(panel, x.Row(int(row)))
			copy(dst[j*stride+p*Lanes:], acc[:])
		}
	}
}

// floatSums are the products of a panel with x.
//
//go:norace
func floatSums(w, x []float32) [Lanes]float32 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	for c, v := range x {
		p := (*[Lanes]float32)(w[c*Lanes:])
		s0 += float32(p[0] * v)
		s1 += float32(p[1] * v)
		s2 += float32(p[2] * v)
		s3 += float32(p[3] * v)
		s4 += float32(p[4] * v)
		s5 += float32(p[5] * v)
		s6 += float32(p[6] * v)
		s7 += float32(p[7] * v)
	}
	return [Lanes]float32{s0, s1, s2, s3, s4, s5, s6, s7}
}

func (m *Matrix) mulBlocks(dst []float32, stride int, x *Input, rows []int32, from, to int) {
	for p := from; p < to; p++ {
		panel := m.Q[p*Lanes*m.Cols : (p+1)*Lanes*m.Cols]
		scales := m.D[p*Lanes*m.Cols/Block : (p+1)*Lanes*m.Cols/Block]
		for j, row := range rows {
			var acc [Lanes]float32
			q, d := x.quants(int(row)), x.scales(int(row))
			for b := range m.Cols / Block {
				s := blockSums(panel[b*Block*Lanes:(b+1)*Block*Lanes], q[b*Block:(b+1)*Block])
				w := (*[Lanes]float32)(scales[b*Lanes:])
				for l := range acc {
					acc[l] += float32(float32(s[l]) * float32(w[l]*d[b]))
				}
			}
			copy(dst[j*stride+p*Lanes:], acc[:])
		}
	}
}

// blockSums are the products of a block of a panel, one per row of it. Eight
// variables stay in registers, an array would not.
//
//go:norace
func blockSums(w []int8, q []int16) [Lanes]int32 {
	var s0, s1, s2, s3, s4, s5, s6, s7 int32
	for i := 0; i < Block; i += 2 {
		p := (*[2 * Lanes]int8)(w[i*Lanes:])
		a, b := int32(q[i]), int32(q[i+1])
		s0 += int32(p[0])*a + int32(p[1])*b
		s1 += int32(p[2])*a + int32(p[3])*b
		s2 += int32(p[4])*a + int32(p[5])*b
		s3 += int32(p[6])*a + int32(p[7])*b
		s4 += int32(p[8])*a + int32(p[9])*b
		s5 += int32(p[10])*a + int32(p[11])*b
		s6 += int32(p[12])*a + int32(p[13])*b
		s7 += int32(p[14])*a + int32(p[15])*b
	}
	return [Lanes]int32{s0, s1, s2, s3, s4, s5, s6, s7}
}

func squares(x []float32) float32 {
	var acc [Lanes]float32
	for i, v := range x {
		acc[i%Lanes] += float32(v * v)
	}
	return fold(&acc)
}

func scaleBy(dst, x, w []float32, scale float32) {
	for i, v := range x {
		dst[i] = float32(v*scale) * w[i]
	}
}

func addTo(dst, x []float32) {
	for i, v := range x {
		dst[i] += v
	}
}

func addScaled(dst, x []float32, f float32) {
	for i, v := range x {
		dst[i] += float32(v * f)
	}
}

// Constants of exp: log2(e), ln(2) in two parts, and the polynomial of Cephes'
// expf on [-ln(2)/2, ln(2)/2].
const (
	expMin, expMax = -87, 88
	log2e          = 1.44269504088896341
	ln2Hi, ln2Lo   = 0.693359375, -2.12194440e-4
	exp5           = 1.9875691500e-4
	exp4           = 1.3981999507e-3
	exp3           = 8.3334519073e-3
	exp2           = 4.1665795894e-2
	exp1           = 1.6666665459e-1
	exp0           = 5.0000001201e-1
)

// exp is e to the power x, within 2 units in the last place, for x clamped to
// [-87, 88].
func exp(x float32) float32 {
	x = max(expMin, min(expMax, x))
	t := float32(x*log2e) + round
	n := t - round
	r := (x - float32(n*ln2Hi)) - float32(n*ln2Lo)
	y := float32(r*exp5) + exp4
	y = float32(y*r) + exp3
	y = float32(y*r) + exp2
	y = float32(y*r) + exp1
	y = float32(y*r) + exp0
	y = (float32(y*float32(r*r)) + r) + 1
	return math.Float32frombits(math.Float32bits(y) + math.Float32bits(t)<<23)
}

func gate(dst, g, u []float32) {
	for i, v := range g {
		dst[i] = float32((v / (1 + exp(-v))) * u[i])
	}
}

func expSub(x []float32, top float32) float32 {
	var acc [Lanes]float32
	for i, v := range x {
		x[i] = exp(v - top)
		acc[i%Lanes] += x[i]
	}
	return fold(&acc)
}

//go:norace
func scores(dst *[Page]float32, q, keys []float32, scale float32) {
	*dst = [Page]float32{}
	for d, v := range q {
		row := (*[Page]float32)(keys[d*Page:])
		for p := range dst {
			dst[p] += float32(row[p] * v)
		}
	}
	for p := range dst {
		dst[p] = float32(dst[p] * scale)
	}
}

//go:norace
func mix(dst, weights, values []float32, n int) {
	width := len(dst)
	for p := range n {
		for i, v := range values[p*width : (p+1)*width] {
			dst[i] += float32(v * weights[p])
		}
	}
}
