package gateway

import (
	"context"
	"time"
)

// watchdog cancels a leg that has been silent for too long. Feeding it costs a
// timer reset and no allocation. It is for one goroutine.
type watchdog struct {
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	patient time.Duration
}

func newWatchdog(cancel context.CancelCauseFunc, after time.Duration, cause error) *watchdog {
	return &watchdog{cancel: cancel, patient: after, timer: time.AfterFunc(after, func() { cancel(cause) })}
}

// replace starts to watch for another silence.
func (w *watchdog) replace(after time.Duration, cause error) {
	w.timer.Stop()
	w.patient = after
	w.timer = time.AfterFunc(after, func() { w.cancel(cause) })
}

// feed says that something has come.
func (w *watchdog) feed() { w.timer.Reset(w.patient) }

func (w *watchdog) stop() { w.timer.Stop() }
