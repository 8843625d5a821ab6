//go:build !race

package testproc

// Race says that the race detector is on.
const Race = false
