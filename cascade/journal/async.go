package journal

import (
	"log/slog"
	"sync"
	"sync/atomic"
)

// Async hands records to one goroutine, so that a request never waits for the
// disk. When the queue is full the record is dropped and counted.
type Async struct {
	records chan Record
	drops   atomic.Uint64
	failed  atomic.Uint64
	done    chan struct{}

	mu     sync.RWMutex
	closed bool
}

// NewAsync starts the goroutine. after, which may be nil, is called there with
// each record that was written, for the learner.
func NewAsync(j *Journal, queue int, log *slog.Logger, after func(Record)) *Async {
	a := &Async{records: make(chan Record, max(1, queue)), done: make(chan struct{})}
	go a.run(j, log, after)
	return a
}

func (a *Async) run(j *Journal, log *slog.Logger, after func(Record)) {
	defer close(a.done)
	for r := range a.records {
		seq, err := j.Append(r)
		if err != nil {
			// One line per run of failures: a full disk fails every time.
			if a.failed.Add(1) == 1 {
				log.Error("decision not logged", "error", err)
			}
			continue
		}
		a.failed.Store(0)
		if after != nil {
			r.Seq = seq
			after(r)
		}
	}
}

// Log queues a record and reports whether there was room.
func (a *Async) Log(r Record) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.closed {
		a.drops.Add(1)
		return false
	}
	select {
	case a.records <- r:
		return true
	default:
		a.drops.Add(1)
		return false
	}
}

// Dropped is the number of records for which there was no room.
func (a *Async) Dropped() uint64 { return a.drops.Load() }

// Close writes what is queued and ends the goroutine. The journal stays open.
func (a *Async) Close() {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.records)
	}
	a.mu.Unlock()
	<-a.done
}
