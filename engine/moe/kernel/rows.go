package kernel

import "math"

// Page is the number of positions whose keys and values lie together. Keys of
// a head are stored as [dimension][position], values as [position][dimension].
const Page = 32

// RMSNorm writes x / sqrt(mean(x*x) + eps) * w into dst, which may be x. The
// length must be a multiple of 8.
func RMSNorm(dst, x, w []float32, eps float32) {
	if useSIMD {
		scaleBySIMD(dst, x, w, rms(squaresSIMD(x), len(x), eps))
	} else {
		scaleBy(dst, x, w, rms(squares(x), len(x), eps))
	}
}

func rms(sum float32, n int, eps float32) float32 {
	return float32(1 / math.Sqrt(float64(sum/float32(n)+eps)))
}

// Add adds x to dst. The length must be a multiple of 8.
func Add(dst, x []float32) {
	if useSIMD {
		addToSIMD(dst, x)
	} else {
		addTo(dst, x)
	}
}

// AddScaled adds f*x to dst. The length must be a multiple of 8.
func AddScaled(dst, x []float32, f float32) {
	if useSIMD {
		addScaledSIMD(dst, x, f)
	} else {
		addScaled(dst, x, f)
	}
}

// Gate writes silu(g)*u, the inner part of SwiGLU, into dst, which may be g or
// u. The length must be a multiple of 8.
func Gate(dst, g, u []float32) {
	if useSIMD {
		gateSIMD(dst, g, u)
	} else {
		gate(dst, g, u)
	}
}

// ExpSub replaces each x by exp(x-top) and returns their sum. The length must
// be a multiple of 8; x-top is clamped to at least -87, so what should count
// as nothing is -Inf and adds 1e-38.
func ExpSub(x []float32, top float32) float32 {
	if useSIMD {
		return expSubSIMD(x, top)
	}
	return expSub(x, top)
}

// Max is the greatest of x, -Inf for none; NaN is passed over.
func Max(x []float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range x {
		if v > top {
			top = v
		}
	}
	return top
}

// Scores writes scale times the product of query q with the keys of one page.
// All Page positions are written; those that hold no key mean nothing.
func Scores(dst *[Page]float32, q, keys []float32, scale float32) {
	if useSIMD {
		scoresSIMD(dst, q, keys, scale)
	} else {
		scores(dst, q, keys, scale)
	}
}

// Mix adds the first n values of a page, weighted, to dst, position after
// position. len(dst) is the dimension of a value, a multiple of 8; weights
// holds at least n+3 values.
func Mix(dst, weights, values []float32, n int) {
	if useSIMD {
		mixSIMD(dst, weights, values, n)
	} else {
		mix(dst, weights, values, n)
	}
}

// Rotary is the table of a rotary position embedding for one position: cosine
// and sine of each pair's angle.
type Rotary struct{ Cos, Sin []float32 }

// NewRotary makes tables for positions 0 to n-1 of heads of the given size,
// angle position/base^(2i/size) for pair i (Su et al., arXiv 2104.09864).
func NewRotary(n, size int, base float64) []Rotary {
	out := make([]Rotary, n)
	flat := make([]float32, n*size)
	for p := range out {
		out[p] = Rotary{flat[: size/2 : size/2], flat[size/2 : size : size]}
		flat = flat[size:]
		for i := range size / 2 {
			sin, cos := math.Sincos(float64(p) * math.Pow(base, -2*float64(i)/float64(size)))
			out[p].Cos[i], out[p].Sin[i] = float32(cos), float32(sin)
		}
	}
	return out
}

// Halves rotates the pairs (i, i+size/2) of one head, as GPT-NeoX does.
func (r Rotary) Halves(x []float32) {
	n := len(r.Cos)
	a, b := x[:n], x[n:2*n]
	for i, c := range r.Cos {
		s := r.Sin[i]
		p, q := a[i], b[i]
		a[i] = float32(p*c) - float32(q*s)
		b[i] = float32(p*s) + float32(q*c)
	}
}

// Adjacent rotates the pairs (2i, 2i+1) of one head, as Llama's GGUF files have
// them.
func (r Rotary) Adjacent(x []float32) {
	for i, c := range r.Cos {
		s := r.Sin[i]
		p, q := x[2*i], x[2*i+1]
		x[2*i] = float32(p*c) - float32(q*s)
		x[2*i+1] = float32(p*s) + float32(q*c)
	}
}
