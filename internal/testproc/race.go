//go:build race

package testproc

// Race says that the race detector is on. It takes memory of its own and makes
// all slower, so bounds of memory and allocations mean nothing under it.
const Race = true
