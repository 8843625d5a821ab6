//go:build race

package evaluate

// slow is how many times slower than usual tests run.
const slow = 8
