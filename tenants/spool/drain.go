package spool

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/weirhq/weir/tenants"
)

// batch is rows that lie together in a segment, read but not delivered.
type batch struct {
	seg        *segment
	from, upTo int64
	limit      int // of rows, when it was read
	rows       []tenants.UsageRecord
	unreadable bool // some were not
}

// Drain delivers the oldest rows that were not delivered, at most limit of
// them, and returns how many: 0 when nothing waits. If deliver fails, its error
// is returned and the same rows come again. After a crash the last batch comes
// again too: the receiver drops attempt ids that it has. While one batch is
// delivered the next is read.
func (s *Spool) Drain(ctx context.Context, limit int, deliver func(context.Context, []tenants.UsageRecord) error) (int, error) {
	s.drain.Lock()
	defer s.drain.Unlock()
	limit = max(limit, 1)
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		b, err := s.oldest(limit)
		if b == nil || err != nil {
			return 0, err
		}
		if len(b.rows) > 0 {
			reading := s.readAhead(b)
			err = deliver(ctx, b.rows)
			s.ahead = <-reading
		}
		if err != nil {
			s.ahead = nil // an outage may be long
			return 0, err
		}
		if err := s.delivered(b); err != nil || len(b.rows) > 0 {
			return len(b.rows), err
		}
	}
}

// oldest reads the first rows that were not delivered, where that has not been
// done ahead.
func (s *Spool) oldest(limit int) (*batch, error) {
	seg, from, to, err := s.behind(nil, 0)
	if seg == nil || err != nil {
		return nil, err
	}
	if b := s.ahead; b != nil && b.seg == seg && b.from == from && b.limit == limit {
		return b, nil
	}
	b, err := readBatch(seg, from, to, limit)
	if err != nil {
		return nil, fmt.Errorf("drain %s: %w", seg.path, err)
	}
	return b, nil
}

// readAhead reads what follows a batch, if anything does. A failure shows when
// it is read again.
func (s *Spool) readAhead(b *batch) <-chan *batch {
	out := make(chan *batch, 1)
	seg, from, to, err := s.behind(b.seg, b.upTo)
	if seg == nil || err != nil {
		out <- nil
		return out
	}
	go func() {
		next, _ := readBatch(seg, from, to, b.limit)
		out <- next
	}()
	return out
}

// behind returns the first segment with something not yet looked at, and
// where, taking the segment done as delivered up to upTo.
func (s *Spool) behind(done *segment, upTo int64) (seg *segment, from, to int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, 0, ErrClosed
	}
	for _, seg := range s.segs {
		from := seg.drained
		if seg == done {
			from = upTo
		}
		if from < seg.end {
			return seg, from, seg.end, nil
		}
	}
	return nil, 0, 0, nil
}

// minAttempt is about the least that an attempt takes in a segment.
const minAttempt = 256

// readBatch reads settlements between two offsets, at most limit. It reads the
// file, which shows what the mapping holds.
func readBatch(seg *segment, from, to int64, limit int) (*batch, error) {
	b := &batch{seg: seg, from: from, upTo: from, limit: limit, rows: make([]tenants.UsageRecord, 0, min(int64(limit), (to-from)/minAttempt))}
	fs := readFrames(seg.file, seg.seq, from, to)
	d := decoder{seen: make(map[string]string)}
	for ; len(b.rows) < limit; b.upTo = fs.off {
		f, err := fs.next()
		if errors.Is(err, io.EOF) {
			b.upTo = to
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		if f.kind != kindSettlement {
			continue
		}
		rec, err := d.record(f.payload)
		if err != nil {
			b.unreadable = true
			continue
		}
		b.rows = append(b.rows, rec)
	}
	return b, nil
}

func (s *Spool) delivered(b *batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Pending -= int64(len(b.rows))
	b.seg.keep = b.seg.keep || b.unreadable
	if err := b.seg.markDrained(b.upTo); err != nil {
		return err
	}
	if b.seg.finished() {
		s.wake()
	}
	return nil
}
