package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/tenants"
)

// lost is an admission of a dead process.
type lost struct {
	seg *segment
	off int64
	rec tenants.UsageRecord
}

// attempt is what an admission and its settlement have in common. The id is not:
// the row of a whole answer has one of its own (tenants.AnswerID), so that a
// gateway_lost row never stands in the place of another gateway's answer. Nor is the
// number: which row counts the request is known when it ends.
type attempt struct {
	operation string
	started   time.Time
}

func attemptOf(r *tenants.UsageRecord) attempt { return attempt{r.OperationID, r.StartedAt} }

// recover reads what earlier processes left and starts the first segment of
// this one. Every step may be repeated after another crash.
func (s *Spool) recover() error {
	if err := s.openSegments(); err != nil {
		return err
	}
	// An admission comes before its settlement, so one pass in order does.
	open := map[attempt]lost{}
	for _, seg := range s.segs {
		if err := s.scan(seg, open); err != nil {
			return err
		}
	}
	if err := s.dropEmpty(); err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	return s.settleLost(open)
}

// dropEmpty deletes segments that were made ahead and never used.
func (s *Spool) dropEmpty() error {
	kept := s.segs[:0]
	var errs []error
	for _, seg := range s.segs {
		if seg.end == headerSize && !seg.keep {
			errs = append(errs, seg.remove())
		} else {
			kept = append(kept, seg)
		}
	}
	s.segs = kept
	return errors.Join(errs...)
}

// openSegments opens the segment files, oldest first, and sets aside what is
// none.
func (s *Spool) openSegments() error {
	entries, err := os.ReadDir(s.opts.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(s.opts.Dir, e.Name())
		switch {
		case strings.HasSuffix(path, segmentExt+".new"):
			if err := os.Remove(path); err != nil { // never had a row
				return err
			}
		case strings.HasSuffix(path, segmentExt):
			if err := s.openSegment(path); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(s.segs, func(a, b *segment) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
	return nil
}

func (s *Spool) openSegment(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	seq, drained, err := readHeader(f)
	if errors.Is(err, errHeader) {
		s.opts.Log.Error("spool: file set aside", "file", path, "error", err)
		s.stats.Kept++
		return errors.Join(f.Close(), os.Rename(path, path+".kept"))
	}
	info, statErr := f.Stat()
	if statErr != nil {
		return errors.Join(statErr, f.Close())
	}
	s.segs = append(s.segs, &segment{path: path, seq: seq, file: f, size: info.Size(), drained: drained, sealed: true})
	s.nextSeq = max(s.nextSeq, seq+1)
	return nil
}

// scan finds a segment's end, its open admissions and its undelivered rows.
func (s *Spool) scan(seg *segment, open map[attempt]lost) error {
	fs := readFrames(seg.file, seg.seq, headerSize, seg.size)
	for {
		f, err := fs.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", seg.path, err)
		}
		rec, err := decodeRecord(f.payload)
		switch {
		case err != nil:
			seg.keep = true
		case f.kind == kindAdmission && !f.settled:
			open[attemptOf(&rec)] = lost{seg, f.off, rec}
		case f.kind == kindSettlement:
			delete(open, attemptOf(&rec))
			if f.off >= seg.drained {
				s.stats.Pending++
			}
		}
	}
	seg.end = fs.off
	seg.drained = min(seg.drained, seg.end)
	if fs.torn > 0 {
		seg.keep = true
		s.stats.Torn += int64(fs.torn)
		s.opts.Log.Warn("spool: a crash of the machine tore frames", "segment", seg.path, "frames", fs.torn)
	}
	return nil
}

func (s *Spool) start() error {
	seg, err := createSegment(s.opts.Dir, s.nextSeq, s.opts.SegmentBytes)
	if err != nil {
		return err
	}
	s.nextSeq++
	s.segs = append(s.segs, seg)
	return nil
}

// settleLost writes the row of every admission without a settlement.
func (s *Spool) settleLost(open map[attempt]lost) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recovering = true
	defer func() { s.recovering = false }()
	for _, l := range open {
		if _, _, err := s.append(kindSettlement, &l.rec); err != nil {
			return fmt.Errorf("settle lost attempt %s: %w", l.rec.AttemptID, err)
		}
		s.stats.Pending++
		s.stats.Recovered++
		if err := l.seg.markSettled(l.off); err != nil {
			return fmt.Errorf("settle lost attempt %s: %w", l.rec.AttemptID, err)
		}
	}
	return nil
}
