// Package symptoms tells why a worker expects to fail while it still serves: its
// model was lost again and again, or its memory is so short that everything
// stands still for a part of the time. A gateway then moves its streams away.
// Steps that are too slow the gateway sees by itself.
package symptoms

import (
	"fmt"
	"os"
	"slices"
	"time"
)

// Bounds of the symptoms.
const (
	mostLosses = 3 // of the model within lossesIn
	lossesIn   = 10 * time.Minute
	// stalls is the share of a minute, in percent, in which all tasks waited for
	// memory, from which on it is short, and fewStalls that at which it is not any
	// more.
	stalls    = 10
	fewStalls = 3
)

// pressure are the files that tell how short memory is: of the worker's own
// control group, else of the machine. Both are Linux's (PSI).
var pressure = []string{"/sys/fs/cgroup/memory.pressure", "/proc/pressure/memory"}

// Watch follows a worker's symptoms. It is for one goroutine.
type Watch struct {
	losses []time.Time
	short  bool
	files  []string
}

// New returns a Watch of this machine.
func New() *Watch { return &Watch{files: pressure} }

// Lost notes that the model was lost at a time.
func (w *Watch) Lost(at time.Time) { w.losses = append(w.losses, at) }

// Look tells why the worker expects to fail, "" where it does not.
func (w *Watch) Look(now time.Time) string {
	w.losses = slices.DeleteFunc(w.losses, func(at time.Time) bool { return now.Sub(at) >= lossesIn })
	if n := len(w.losses); n >= mostLosses {
		return fmt.Sprintf("its model was lost %d times in %v", n, lossesIn)
	}
	stood, ok := w.stalled()
	if w.short = ok && (stood >= stalls || w.short && stood > fewStalls); w.short {
		return fmt.Sprintf("memory is short: everything stood still for %.0f %% of the last minute", stood)
	}
	return ""
}

// stalled reads how much of the last minute all tasks waited for memory, in
// percent. It is false where the machine does not tell.
func (w *Watch) stalled() (float64, bool) {
	for _, file := range w.files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if share, ok := parsePressure(data); ok {
			return share, true
		}
	}
	return 0, false
}
