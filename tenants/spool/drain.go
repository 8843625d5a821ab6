package spool

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/weirhq/weir/tenants"
)

// Drain delivers the oldest rows that were not delivered, at most limit of
// them, and returns how many: 0 when nothing waits. If deliver fails, its error
// is returned and the same rows come again. After a crash the last batch comes
// again too: the receiver drops attempt ids that it has.
func (s *Spool) Drain(ctx context.Context, limit int, deliver func(context.Context, []tenants.UsageRecord) error) (int, error) {
	s.drain.Lock()
	defer s.drain.Unlock()
	limit = max(limit, 1)
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		seg, from, to, err := s.oldest()
		if seg == nil || err != nil {
			return 0, err
		}
		rows, upTo, unreadable, err := readRows(seg, from, to, limit)
		if err != nil {
			return 0, fmt.Errorf("drain %s: %w", seg.path, err)
		}
		if len(rows) > 0 {
			if err := deliver(ctx, rows); err != nil {
				return 0, err
			}
		}
		if err := s.delivered(seg, upTo, len(rows), unreadable); err != nil {
			return len(rows), err
		}
		if len(rows) > 0 {
			return len(rows), nil
		}
	}
}

// oldest returns the first segment with something not yet looked at, and where.
func (s *Spool) oldest() (seg *segment, from, to int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, 0, ErrClosed
	}
	for _, seg := range s.segs {
		if seg.drained < seg.end {
			return seg, seg.drained, seg.end, nil
		}
	}
	return nil, 0, 0, nil
}

// readRows reads settlements between two offsets, at most limit, and returns
// where it stopped. It reads the file, which shows what the mapping holds.
func readRows(seg *segment, from, to int64, limit int) (rows []tenants.UsageRecord, upTo int64, unreadable bool, err error) {
	fs := readFrames(seg.file, seg.seq, from, to)
	for upTo = from; len(rows) < limit; upTo = fs.off {
		f, err := fs.next()
		if errors.Is(err, io.EOF) {
			return rows, to, unreadable, nil
		}
		if err != nil {
			return nil, from, false, err
		}
		if f.kind != kindSettlement {
			continue
		}
		rec, err := decodeRecord(f.payload)
		if err != nil {
			unreadable = true
			continue
		}
		rows = append(rows, rec)
	}
	return rows, upTo, unreadable, nil
}

func (s *Spool) delivered(seg *segment, upTo int64, rows int, unreadable bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Pending -= int64(rows)
	seg.keep = seg.keep || unreadable
	if err := seg.markDrained(upTo); err != nil {
		return err
	}
	if seg.finished() {
		s.wake()
	}
	return nil
}
