package spool

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/weirhq/weir/tenants"
)

// Options say where and how large a spool is.
type Options struct {
	Dir          string        // of this node alone; created with mode 0700
	SegmentBytes int64         // of one file; 0 stands for 8 MiB
	MaxBytes     int64         // of all files, from three segments; 0 stands for 1 GiB
	SyncEvery    time.Duration // 0 stands for 100 ms
	Log          *slog.Logger  // nil discards
}

const segmentBytes = 8 << 20

// MinBytes is the least MaxBytes where SegmentBytes is left open.
const MinBytes = 3 * segmentBytes

func (o *Options) fill() error {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = segmentBytes
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 1 << 30
	}
	if o.SyncEvery == 0 {
		o.SyncEvery = 100 * time.Millisecond
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Dir == "":
		return errors.New("spool: no directory")
	case o.SegmentBytes < 4*maxFrame || o.SegmentBytes > 1<<30 || o.SegmentBytes%8 != 0:
		return fmt.Errorf("spool: segments of %d bytes: want a multiple of 8 from %d to 1 GiB", o.SegmentBytes, 4*maxFrame)
	case o.MaxBytes < 3*o.SegmentBytes:
		return fmt.Errorf("spool: %d bytes in all are less than three segments of %d", o.MaxBytes, o.SegmentBytes)
	}
	return nil
}

// Errors of a spool.
var (
	// ErrFull refuses an admission: the rows that wait have reached MaxBytes.
	ErrFull = errors.New("usage spool is full: the ledger has been away too long")
	// ErrSettled answers the second settlement of one admission.
	ErrSettled = errors.New("admission is settled already")
	// ErrLocked says that another process uses the directory.
	ErrLocked = errors.New("usage spool is in use by another process")
	// ErrClosed answers calls after Close.
	ErrClosed = errors.New("usage spool is closed")
)

const maxFrame = frameHead + maxRecord + 8

// growth is how much longer a settlement may be than its admission: other
// numbers, another model, an error code.
const growth = 512

// Stats counts what a spool holds and what it has met since Open.
type Stats struct {
	Pending   int64 // rows not delivered
	Open      int64 // admissions without a settlement
	Segments  int   // files
	Bytes     int64 // of files
	Recovered int64 // admissions of dead processes that became gateway_lost
	Torn      int64 // frames that a crash of the machine has destroyed
	Refused   int64 // admissions refused because the spool was full
	Kept      int64 // files set aside because parts could not be read
}

// Spool is an open directory. It is safe for concurrent use.
type Spool struct {
	opts    Options
	dirLock *os.File

	drain sync.Mutex // held while batches are delivered
	ahead []*batch   // those after it, read already; of drain

	mu         sync.Mutex
	closed     bool
	recovering bool
	segs       []*segment // oldest first; the last is appended to
	ready      []*segment // made ahead
	nextSeq    uint64
	making     bool       // a segment is being made, without the lock
	made       *sync.Cond // of mu: it is
	buf        []byte
	promised   int64 // room set aside for settlements
	stats      Stats

	work chan struct{} // wakes the keeper
	stop chan struct{}
	done chan struct{}
}

// Ticket is an admission that waits for its settlement. Its owner keeps it in
// place and uses it from one goroutine at a time.
type Ticket struct {
	spool   *Spool
	seg     *segment
	off     int64
	promise int64
}

// Open takes the directory, turns admissions that a dead process left behind
// into gateway_lost rows, and is then ready to append. Rows of earlier
// processes are delivered first.
func Open(o Options) (*Spool, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(o.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	if err := lockDir(lock); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrLocked, o.Dir, err), lock.Close())
	}
	s := &Spool{
		opts: o, dirLock: lock, nextSeq: 1,
		work: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	s.made = sync.NewCond(&s.mu)
	if err := s.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("open spool %s: %w", o.Dir, err), s.closeFiles())
	}
	go s.keep()
	return s, nil
}

// Admit records that an attempt is about to run. rec holds the estimate that
// becomes its row if this process dies: outcome and usage source are set here.
// ErrFull means that the attempt cannot be accounted for and must not run.
func (s *Spool) Admit(rec *tenants.UsageRecord, t *Ticket) error {
	lost := *rec
	lost.Outcome, lost.UsageSource = tenants.OutcomeGatewayLost, tenants.UsageEstimated
	s.mu.Lock()
	defer s.mu.Unlock()
	size := frameSize(recordBound(&lost))
	promise := size + growth
	if err := s.makeRoom(size + s.promised + promise); err != nil {
		if errors.Is(err, ErrFull) {
			s.stats.Refused++
		}
		return err
	}
	seg, off, err := s.append(kindAdmission, &lost)
	if err != nil {
		return err
	}
	seg.open++
	s.stats.Open++
	s.promised += promise
	*t = Ticket{s, seg, off, promise}
	return nil
}

// Settle records how an admitted attempt ended. When it returns nil the row
// will reach the ledger even if this process dies in the next instant.
func (s *Spool) Settle(t *Ticket, rec *tenants.UsageRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.spool != s {
		return ErrSettled
	}
	if _, _, err := s.append(kindSettlement, rec); err != nil {
		return err
	}
	s.stats.Pending++
	seg, off := t.seg, t.off
	seg.open--
	s.stats.Open--
	s.promised -= t.promise
	*t = Ticket{}
	if err := seg.markSettled(off); err != nil {
		// Recovery finds the settlement by its attempt.
		s.opts.Log.Warn("spool: an admission was not marked as settled", "segment", seg.path, "error", err)
	}
	if seg.finished() {
		s.wake()
	}
	return nil
}

// Append records the row of an attempt that was never admitted, as one that
// was refused.
func (s *Spool) Append(rec *tenants.UsageRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.makeRoom(s.promised + maxFrame); err != nil {
		if errors.Is(err, ErrFull) {
			s.stats.Refused++
		}
		return err
	}
	if _, _, err := s.append(kindSettlement, rec); err != nil {
		return err
	}
	s.stats.Pending++
	return nil
}

// encode writes the record into the spool's buffer, behind room for the head
// of its checksum.
func (s *Spool) encode(kind byte, rec *tenants.UsageRecord) ([]byte, error) {
	s.buf = appendSumHead(s.buf[:0], 0, 0, kind)
	b, err := appendRecord(s.buf, rec)
	if err != nil {
		return nil, err
	}
	s.buf = b
	return b, nil
}

// append writes a frame to the active segment, or to the next where it does
// not fit or cannot be written.
func (s *Spool) append(kind byte, rec *tenants.UsageRecord) (*segment, int64, error) {
	for failed := false; ; {
		if s.closed {
			return nil, 0, ErrClosed
		}
		// Anew each time: roll gives up the lock, and the buffer with it.
		sum, err := s.encode(kind, rec)
		if err != nil {
			return nil, 0, err
		}
		seg := s.segs[len(s.segs)-1]
		if off := seg.end; off+frameSize(len(sum)-sumHead) <= seg.size {
			appendSumHead(sum[:0], seg.seq, off, kind)
			if err = seg.put(sum); err == nil {
				return seg, off, nil
			}
			if failed {
				return nil, 0, err
			}
			failed = true
			s.opts.Log.Error("spool: segment given up", "segment", seg.path, "error", err)
		}
		if err := s.roll(seg); err != nil {
			return nil, 0, err
		}
	}
}

// roll seals the segment if it is still the active one and starts the next.
func (s *Spool) roll(from *segment) error {
	for len(s.ready) == 0 {
		if err := s.prepare(); err != nil {
			return err
		}
	}
	if active := s.segs[len(s.segs)-1]; active == from {
		active.sealed = true
		s.segs = append(s.segs, s.ready[0])
		s.ready = s.ready[1:]
		s.wake()
	}
	return nil
}

// makeRoom sees to it that n bytes can be appended, whatever the disk does.
func (s *Spool) makeRoom(n int64) error {
	if s.closed {
		return ErrClosed
	}
	for s.room() < n {
		if err := s.prepare(); err != nil {
			return err
		}
		if s.closed {
			return ErrClosed
		}
	}
	return nil
}

// room is what surely fits into the files that exist: every segment may leave
// almost a frame unused at its end.
func (s *Spool) room() int64 {
	active := s.segs[len(s.segs)-1]
	free := active.size - active.end - maxFrame
	for _, r := range s.ready {
		free += r.size - headerSize - maxFrame
	}
	return free
}

// prepare makes one more segment, within MaxBytes, or waits for the one that
// is being made: segments must follow each other in the order of their
// numbers. It gives up the lock meanwhile, because it waits for the disk.
func (s *Spool) prepare() error {
	if s.making {
		s.made.Wait()
		return nil
	}
	// What was lost is written down even over the bound.
	if !s.recovering && (int64(len(s.segs)+len(s.ready))+1)*s.opts.SegmentBytes > s.opts.MaxBytes {
		return ErrFull
	}
	seq := s.nextSeq
	s.nextSeq++
	s.making = true
	s.mu.Unlock()
	seg, err := createSegment(s.opts.Dir, seq, s.opts.SegmentBytes)
	s.mu.Lock()
	s.making = false
	s.made.Broadcast()
	if err != nil {
		return err
	}
	if s.closed {
		return errors.Join(ErrClosed, seg.close(), os.Remove(seg.path))
	}
	s.ready = append(s.ready, seg)
	return nil
}

// Stats returns the counters.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Segments = len(s.segs) + len(s.ready)
	for _, seg := range s.segs {
		st.Bytes += seg.size
	}
	st.Bytes += int64(len(s.ready)) * s.opts.SegmentBytes
	return st
}

func (s *Spool) wake() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}
