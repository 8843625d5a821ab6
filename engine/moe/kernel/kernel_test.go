package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/weirhq/weir/engine/gguf"
	"pgregory.net/rapid"
)

// random makes n values of different magnitudes.
func random(rng *rand.Rand, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(7)-3)))
	}
	return out
}

// mustMatch compares bits.
func mustMatch(t *rapid.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: value %d of %d is %v, want %v", what, i, len(want), got[i], want[i])
		}
	}
}

func pack(t testing.TB, kind gguf.Type, rows, cols int, w []float32) Matrix {
	t.Helper()
	raw, err := gguf.AppendFloats(nil, kind, w)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Pack(kind, rows, cols, raw)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func input(rng *rand.Rand, rows, cols int) *Input {
	x := NewInput(rows, cols)
	for i := range rows {
		copy(x.Row(i), random(rng, cols))
		if cols%Block == 0 {
			x.Quantise(i)
		}
	}
	return x
}

// TestSIMDMatchesPortable is what lets a build without SIMD give the same text.
func TestSIMDMatchesPortable(t *testing.T) {
	if !useSIMD {
		t.Skip("built without GOEXPERIMENT=simd, or no AVX2: one implementation only")
	}
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		rows, n := rapid.IntRange(1, 70).Draw(rt, "rows"), rapid.IntRange(1, 9).Draw(rt, "n")
		cols := Lanes * rapid.IntRange(1, 20).Draw(rt, "cols/8")
		m := pack(t, gguf.F32, rows, cols, random(rng, rows*cols))
		x := input(rng, n, cols)
		stride := m.PaddedRows()
		got, want := make([]float32, n*stride), make([]float32, n*stride)
		m.mulFloatsSIMD(got, stride, x, all(n), 0, m.Panels())
		m.mulFloats(want, stride, x, all(n), 0, m.Panels())
		mustMatch(rt, "float product", got, want)

		cols = Block * rapid.IntRange(1, 6).Draw(rt, "cols/32")
		m, x = pack(t, gguf.Q8_0, rows, cols, random(rng, rows*cols)), input(rng, n, cols)
		m.mulBlocksSIMD(got, stride, x, all(n), 0, m.Panels())
		m.mulBlocks(want, stride, x, all(n), 0, m.Panels())
		mustMatch(rt, "Q8_0 product", got, want)
		q, d := make([]int16, cols), make([]float32, cols/Block)
		quantise(q, d, x.Row(0))
		mustMatch(rt, "scales", x.scales(0), d)
		for i := range q {
			if q[i] != x.quants(0)[i] {
				rt.Fatalf("quantum %d is %d, want %d", i, x.quants(0)[i], q[i])
			}
		}
	})
}

func TestSIMDRowsMatchPortable(t *testing.T) {
	if !useSIMD {
		t.Skip("built without GOEXPERIMENT=simd, or no AVX2: one implementation only")
	}
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 2))
		n := Lanes * rapid.IntRange(1, 20).Draw(rt, "n/8")
		x, y := random(rng, n), random(rng, n)
		got, want := make([]float32, n), make([]float32, n)
		mustMatch(rt, "squares", []float32{squaresSIMD(x)}, []float32{squares(x)})
		scaleBySIMD(got, x, y, y[0])
		scaleBy(want, x, y, y[0])
		mustMatch(rt, "scale", got, want)
		addToSIMD(got, y)
		addTo(want, y)
		mustMatch(rt, "add", got, want)
		addScaledSIMD(got, y, x[0])
		addScaled(want, y, x[0])
		mustMatch(rt, "add scaled", got, want)
		gateSIMD(got, x, y)
		gate(want, x, y)
		mustMatch(rt, "gate", got, want)
		top := Max(x)
		copy(got, x)
		copy(want, x)
		mustMatch(rt, "sum of exp", []float32{expSubSIMD(got, top)}, []float32{expSub(want, top)})
		mustMatch(rt, "exp", got, want)

		width := Lanes * rapid.IntRange(1, 9).Draw(rt, "width/8")
		page, query := random(rng, Page*width), random(rng, width)
		var a, b [Page]float32
		scoresSIMD(&a, query, page, 0.25)
		scores(&b, query, page, 0.25)
		mustMatch(rt, "scores", a[:], b[:])
		got, want = random(rng, width), make([]float32, width)
		copy(want, got)
		weights, held := random(rng, Page+3), rapid.IntRange(0, Page).Draw(rt, "held")
		mixSIMD(got, weights, page, held)
		mix(want, weights, page, held)
		mustMatch(rt, "mix", got, want)
	})
}

func all(n int) []int32 {
	rows := make([]int32, n)
	for i := range rows {
		rows[i] = int32(i)
	}
	return rows
}

// TestMul compares with sums in double precision, and checks that the rows of a
// product do not depend on each other.
func TestMul(t *testing.T) {
	for _, kind := range []gguf.Type{gguf.F32, gguf.F16, gguf.Q8_0} {
		rng := rand.New(rand.NewPCG(3, uint64(kind)))
		const rows, cols, n = 37, 96, 7
		m, x := pack(t, kind, rows, cols, random(rng, rows*cols)), input(rng, n, cols)
		stride := m.PaddedRows() + 8
		dst := make([]float32, n*stride)
		m.Mul(dst, stride, x, all(n))
		w := make([]float32, cols)
		for r := range rows {
			m.Row(w, r)
			for j := range n {
				sum, slack := product(w, x, j, m.Quantised())
				if got := dst[j*stride+r]; math.Abs(float64(got)-sum) > slack {
					t.Fatalf("%s: row %d times %d is %v, want %v within %v", kind, r, j, got, sum, slack)
				}
			}
		}
		one := make([]float32, stride)
		for j := range int32(n) {
			m.Mul(one, stride, x, []int32{j})
			for r := range rows {
				if one[r] != dst[int(j)*stride+r] {
					t.Fatalf("%s: row %d alone gives %v, with others %v", kind, j, one[r], dst[int(j)*stride+r])
				}
			}
		}
	}
}

// product is w times row j in double precision, and the error that rounding of
// sums and, with Q8_0 weights, of the row to 8 bits may make.
func product(w []float32, x *Input, j int, quantised bool) (sum, slack float64) {
	for i, v := range x.Row(j) {
		sum += float64(v) * float64(w[i])
		slack += 1e-6 * math.Abs(float64(v)*float64(w[i]))
		if quantised {
			slack += 0.501 * float64(x.scales(j)[i/Block]) * math.Abs(float64(w[i]))
		}
	}
	return sum, slack
}

func TestExp(t *testing.T) {
	for x := float32(-87); x < 88; x += 0.0137 {
		got, want := float64(exp(x)), math.Exp(float64(x))
		if math.Abs(got-want) > 2.5e-7*want {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	if got := exp(float32(math.Inf(-1))); got > 1e-37 || got < 0 {
		t.Errorf("exp(-Inf) = %v", got)
	}
}

func TestBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for _, kind := range []gguf.Type{gguf.F32, gguf.Q8_0} {
		m := pack(t, kind, 11, 64, random(rng, 11*64))
		raw := append(m.AppendBytes([]byte("x")), "tail"...)
		if len(raw) != m.Bytes()+5 {
			t.Fatalf("%s: %d bytes, want %d", kind, len(raw), m.Bytes()+5)
		}
		got, tail, err := m.FromBytes(raw[1:])
		if err != nil || string(tail) != "tail" {
			t.Fatalf("%s: %q, %v", kind, tail, err)
		}
		a, b := make([]float32, 64), make([]float32, 64)
		for r := range 11 {
			m.Row(a, r)
			got.Row(b, r)
			for i := range a {
				if a[i] != b[i] {
					t.Fatalf("%s: weight %d of row %d is %v, want %v", kind, i, r, b[i], a[i])
				}
			}
		}
		if _, _, err := m.FromBytes(raw[:m.Bytes()-1]); err == nil {
			t.Errorf("%s: too few bytes: no error", kind)
		}
	}
}

func TestPackRefuses(t *testing.T) {
	for _, c := range []struct {
		kind             gguf.Type
		rows, cols, size int
	}{{gguf.F32, 2, 8, 63}, {gguf.F32, 2, 7, 56}, {gguf.Q8_0, 1, 40, 34}, {gguf.F32, 0, 8, 0}, {28, 1, 8, 64}} {
		if _, err := Pack(c.kind, c.rows, c.cols, make([]byte, c.size)); err == nil {
			t.Errorf("%v: no error", c)
		}
	}
}
