package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/weirhq/weir/tenants"
)

// batch is rows that lie together in a segment, read but not delivered.
type batch struct {
	seg        *segment
	from, upTo int64
	limit      int // of rows, when it was read
	rows       []tenants.UsageRecord
	unreadable bool  // some were not
	err        error // of its delivery
}

// Drain delivers the oldest rows that were not delivered, in at most parallel
// batches at the same time of at most limit rows each, and returns how many: 0
// when nothing waits. If a delivery fails, its error is returned, and its rows
// come again with all that follow. After a crash the last batches come again
// too: the receiver drops attempt ids that it has. While some are delivered the
// next are read.
func (s *Spool) Drain(ctx context.Context, limit, parallel int, deliver func(context.Context, []tenants.UsageRecord) error) (int, error) {
	s.drain.Lock()
	defer s.drain.Unlock()
	limit, parallel = max(limit, 1), max(parallel, 1)
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		round, err := s.oldest(limit, parallel)
		if len(round) == 0 || err != nil {
			return 0, err
		}
		reading := make(chan []*batch, 1)
		go func() {
			ahead, _ := s.read(round[len(round)-1], limit, parallel) // a failure shows when it is read again
			reading <- ahead
		}()
		deliverAll(ctx, round, deliver)
		s.ahead = <-reading
		n, err := s.delivered(round)
		if err != nil {
			s.ahead = nil // an outage may be long
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func deliverAll(ctx context.Context, round []*batch, deliver func(context.Context, []tenants.UsageRecord) error) {
	var wg sync.WaitGroup
	for _, b := range round {
		if len(b.rows) > 0 {
			wg.Go(func() { b.err = deliver(ctx, b.rows) })
		}
	}
	wg.Wait()
}

// oldest returns the first batches that were not delivered, which may have
// been read ahead.
func (s *Spool) oldest(limit, parallel int) ([]*batch, error) {
	if seg, from, _, err := s.behind(nil); seg == nil || err != nil {
		return nil, err
	} else if a := s.ahead; len(a) > 0 && a[0].seg == seg && a[0].from == from && a[0].limit == limit && len(a) <= parallel {
		return a, nil
	}
	return s.read(nil, limit, parallel)
}

// read reads the batches behind one, or the oldest.
func (s *Spool) read(last *batch, limit, parallel int) (out []*batch, err error) {
	for len(out) < parallel {
		seg, from, to, err := s.behind(last)
		if seg == nil || err != nil {
			return out, err
		}
		if last, err = readBatch(seg, from, to, limit); err != nil {
			return nil, fmt.Errorf("drain %s: %w", seg.path, err)
		}
		out = append(out, last)
	}
	return out, nil
}

// behind returns the first segment with something that was not delivered, and
// where; of a batch, what lies behind it.
func (s *Spool) behind(b *batch) (seg *segment, from, to int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, 0, ErrClosed
	}
	for _, seg := range s.segs {
		from := seg.drained
		switch {
		case b == nil || seg.seq > b.seg.seq:
		case seg == b.seg:
			from = b.upTo
		default:
			continue
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

// delivered marks the batches up to the first whose delivery failed, and
// returns how many rows they hold, and the failure.
func (s *Spool) delivered(round []*batch) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range round {
		if b.err != nil {
			return n, b.err
		}
		n += len(b.rows)
		s.stats.Pending -= int64(len(b.rows))
		b.seg.keep = b.seg.keep || b.unreadable
		if err := b.seg.markDrained(b.upTo); err != nil {
			return n, err
		}
		if b.seg.finished() {
			s.wake()
		}
	}
	return n, nil
}
