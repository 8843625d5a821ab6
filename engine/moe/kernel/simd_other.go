//go:build !(goexperiment.simd && amd64)

package kernel

// useSIMD is false where simd/archsimd is not built in; the functions below are
// then never called.
const useSIMD = false

func quantiseSIMD([]int16, []float32, []float32)                        {}
func (*Matrix) mulFloatsSIMD([]float32, int, *Input, []int32, int, int) {}
func (*Matrix) mulBlocksSIMD([]float32, int, *Input, []int32, int, int) {}
func squaresSIMD([]float32) float32                                     { return 0 }
func scaleBySIMD([]float32, []float32, []float32, float32)              {}
func addToSIMD([]float32, []float32)                                    {}
func addScaledSIMD([]float32, []float32, float32)                       {}
func gateSIMD([]float32, []float32, []float32)                          {}
func expSubSIMD([]float32, float32) float32                             { return 0 }
func scoresSIMD(*[Page]float32, []float32, []float32, float32)          {}
func mixSIMD([]float32, []float32, []float32, int)                      {}
