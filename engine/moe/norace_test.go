//go:build !race

package moe_test

// slow is how many times slower than usual tests run.
const slow = 1
