package local_test

import (
	"testing"
	"time"
)

// take returns what comes over a channel within a minute.
func take[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatalf("not within a minute: %s", what)
	}
	return v
}
