// Package kernel is the arithmetic of engine/moe: matrix products, norms and
// attention over float32 and Q8_0 weights.
//
// Every function exists twice: with simd/archsimd (AVX2, built with
// GOEXPERIMENT=simd) and in plain Go. Both do the same operations in the same
// order, so they give the same bits: sums run over eight lanes that are folded
// in one fixed order, products and sums are rounded apart (no fused
// multiply-add, which plain Go could not repeat fast), and Q8_0 products are
// integers within a block. A row's result depends on that row alone, not on
// how many rows are computed with it.
package kernel

// Lanes is the width of a panel and of all partial sums.
const Lanes = 8

// Block is the number of weights under one Q8_0 scale.
const Block = 32

// fold adds the lanes of a partial sum in the order that all kernels use.
func fold(a *[Lanes]float32) float32 {
	return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
}

// padded is n rounded up to whole lanes.
func padded(n int) int { return (n + Lanes - 1) / Lanes * Lanes }
