package spool

import (
	"errors"
	"os"
	"time"
)

// keep flushes the active segment every SyncEvery, retires sealed ones,
// deletes finished ones and makes the next one ahead of need, until Close.
// It alone gives mappings back, so it may flush one without the lock.
func (s *Spool) keep() {
	defer close(s.done)
	ticks := time.NewTicker(s.opts.SyncEvery)
	defer ticks.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticks.C:
			if err := s.flushActive(); err != nil {
				s.opts.Log.Error("spool: flush", "error", err)
			}
		case <-s.work:
		}
		s.tidy()
	}
}

// flushActive makes what was recorded so far safe from the death of the
// machine.
func (s *Spool) flushActive() error {
	s.mu.Lock()
	active := s.segs[len(s.segs)-1]
	file, mem := active.file, active.mem
	s.mu.Unlock()
	return flush(file, mem)
}

// tidy does what is due on segments that are no longer appended to.
func (s *Spool) tidy() {
	type retiring struct {
		seg *segment
		mem []byte
	}
	var retire []retiring
	s.mu.Lock()
	for _, seg := range s.segs[:len(s.segs)-1] {
		if seg.mem != nil {
			retire = append(retire, retiring{seg, seg.mem})
			seg.mem = nil
		}
	}
	finished := s.takeFinished()
	if len(s.ready) == 0 {
		if err := s.prepare(); err != nil && !errors.Is(err, ErrFull) && !errors.Is(err, ErrClosed) {
			s.opts.Log.Error("spool: no next segment", "error", err)
		}
	}
	s.mu.Unlock()
	for _, r := range retire {
		if err := r.seg.retire(r.mem); err != nil {
			s.opts.Log.Error("spool: retire segment", "segment", r.seg.path, "error", err)
		}
	}
	for _, seg := range finished {
		if err := seg.remove(); err != nil {
			s.opts.Log.Error("spool: delete segment", "segment", seg.path, "error", err)
		}
	}
}

// takeFinished takes the segments that have served their purpose off the list.
func (s *Spool) takeFinished() (out []*segment) {
	kept := s.segs[:0]
	for _, seg := range s.segs {
		if seg.finished() {
			out = append(out, seg)
		} else {
			kept = append(kept, seg)
		}
	}
	clear(s.segs[len(kept):])
	s.segs = kept
	for _, seg := range out {
		if seg.keep {
			s.stats.Kept++
		}
	}
	return out
}

// remove deletes the file, or sets it aside if parts of it could not be read.
func (s *segment) remove() error {
	err := s.file.Close()
	if s.keep {
		return errors.Join(err, os.Rename(s.path, s.path+".kept"))
	}
	return errors.Join(err, os.Remove(s.path))
}

// Close flushes and gives the directory up. Admissions that are still open
// become gateway_lost rows at the next Open.
func (s *Spool) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.closed = true
	s.mu.Unlock()
	close(s.stop)
	<-s.done
	s.drain.Lock() // a batch on its way ends first
	defer s.drain.Unlock()
	return s.closeFiles()
}

func (s *Spool) closeFiles() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, seg := range append(s.segs, s.ready...) {
		errs = append(errs, seg.close())
	}
	s.segs, s.ready = nil, nil
	return errors.Join(append(errs, s.dirLock.Close())...)
}
