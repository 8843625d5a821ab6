//go:build race

package local_test

// The race detector allocates on its own account.
const raceDetector = true
