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
)

// Watch follows a worker's symptoms. It is for one goroutine.
type Watch struct {
	losses []time.Time
	stalls float64
	short  string // why, as it began; "" while it is not
	files  []string
}

// New returns a Watch of this machine. Memory is short from the share of a minute
// on, in percent, in which all tasks waited for it, until that is a third of it; 0
// never finds it short.
func New(stalls int) *Watch { return &Watch{stalls: float64(stalls), files: pressureFiles()} }

// Lost notes that the model was lost at a time.
func (w *Watch) Lost(at time.Time) { w.losses = append(w.losses, at) }

// Look tells why the worker expects to fail, "" where it does not.
func (w *Watch) Look(now time.Time) string {
	w.losses = slices.DeleteFunc(w.losses, func(at time.Time) bool { return now.Sub(at) >= lossesIn })
	if n := len(w.losses); n >= mostLosses {
		return fmt.Sprintf("its model was lost %d times in %v", n, lossesIn)
	}
	switch stood, ok := w.stalled(); {
	case !ok || stood <= w.stalls/3:
		w.short = ""
	case stood >= w.stalls && w.short == "":
		w.short = fmt.Sprintf("memory is short: everything stood still for %.0f %% of a minute", stood)
	}
	return w.short
}

// stalled reads how much of the last minute all tasks waited for memory, in
// percent. It is false where the machine does not tell or nobody asks.
func (w *Watch) stalled() (float64, bool) {
	if w.stalls == 0 {
		return 0, false
	}
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
