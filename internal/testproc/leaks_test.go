package testproc

import (
	"testing"
	"time"
)

// TestLeaks: what ends late is no leak.
func TestLeaks(t *testing.T) {
	go time.Sleep(3 * time.Second) // longer than goleak waits
	if err := Leaks(); err != nil {
		t.Error(err)
	}
}
