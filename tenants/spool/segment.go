package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// segment is one file. Its fields belong to the spool's lock.
type segment struct {
	path    string
	seq     uint64
	file    *os.File
	mem     []byte // the mapping while frames are appended; nil before and after
	size    int64
	end     int64 // behind the last frame
	drained int64 // delivered up to here
	open    int   // admissions without a settlement
	sealed  bool  // nothing more is appended
	keep    bool  // holds what could not be read: not deleted but set aside
}

const segmentExt = ".seg"

func segmentPath(dir string, seq uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%016x%s", seq, segmentExt))
}

// createSegment makes a file whose every block is written, because a write to
// a mapping that the disk has no room for is a signal and not an error.
func createSegment(dir string, seq uint64, size int64) (*segment, error) {
	path := segmentPath(dir, seq)
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create spool segment: %w", err)
	}
	s := &segment{path: path, seq: seq, file: f, size: size, end: headerSize, drained: headerSize}
	if err := s.prepare(tmp); err != nil {
		return nil, errors.Join(fmt.Errorf("create spool segment: %w", err), f.Close(), os.Remove(tmp))
	}
	return s, nil
}

func (s *segment) prepare(tmp string) error {
	zeros := make([]byte, 256<<10)
	for off := int64(0); off < s.size; off += int64(len(zeros)) {
		if _, err := s.file.WriteAt(zeros[:min(int64(len(zeros)), s.size-off)], off); err != nil {
			return err
		}
	}
	if _, err := s.file.WriteAt(makeHeader(s.seq), 0); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(tmp, s.path); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(s.path)); err != nil {
		return err
	}
	mem, err := mapFile(s.file, s.size)
	s.mem = mem
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !os.IsPermission(err) {
		return err
	}
	return nil
}

// errFault says that the file behind the mapping could not be written.
var errFault = errors.New("write to the mapped spool segment failed: is the disk full or the file cut short?")

// frameOf builds a frame of a checksum's head and the payload behind it.
func frameOf(sum []byte) []byte {
	payload := sum[sumHead:]
	b := make([]byte, frameSize(len(payload)))
	fillHead(b, sum)
	copy(b[frameHead:], payload)
	return b
}

// fillHead fills in a frame's head.
func fillHead(head, sum []byte) {
	binary.LittleEndian.PutUint32(head, uint32(len(sum)-sumHead))
	binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(sum, castagnoli))
	head[kindAt] = sum[sumHead-1]
}

// put writes a frame at the end. sum holds the checksum's head and, behind
// it, the payload.
func (s *segment) put(sum []byte) (err error) {
	if s.mem == nil {
		// Without a mapping the page cache gets the frame in one call.
		if _, err := s.file.WriteAt(frameOf(sum), s.end); err != nil {
			return fmt.Errorf("append to spool segment: %w", err)
		}
		s.end += frameSize(len(sum) - sumHead)
		return nil
	}
	var head [frameHead]byte
	fillHead(head[:], sum)
	at := s.mem[s.end:]
	err = catchFault(func() {
		copy(at[frameHead:], sum[sumHead:])
		copy(at[4:frameHead], head[4:])
		// The length goes last and in one piece: it makes the frame exist.
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&at[0])), binary.NativeEndian.Uint32(head[:]))
	})
	if err == nil {
		s.end += frameSize(len(sum) - sumHead)
	}
	return err
}

// catchFault runs f and makes a fault in mapped memory its error.
func catchFault(f func()) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		p := recover()
		if _, fault := p.(interface{ Addr() uintptr }); fault {
			err = errFault
		} else if p != nil {
			panic(p)
		}
	}()
	f()
	return nil
}

// markSettled marks the admission at off.
func (s *segment) markSettled(off int64) error {
	if s.mem == nil {
		_, err := s.file.WriteAt([]byte{1}, off+settledAt)
		return err
	}
	return catchFault(func() { s.mem[off+settledAt] = 1 })
}

// markDrained notes how far the segment has been delivered.
func (s *segment) markDrained(off int64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(off))
	if _, err := s.file.WriteAt(b[:], drainedAt); err != nil {
		return fmt.Errorf("mark spool segment: %w", err)
	}
	s.drained = off
	return nil
}

// retire flushes a sealed segment and gives its mapping back, so that a long
// outage does not keep every segment in the process's memory. mem was taken
// from the segment under the spool's lock.
func (s *segment) retire(mem []byte) error {
	return errors.Join(flush(s.file, mem), unmapFile(mem))
}

// flush makes what was written safe from the death of the machine.
func flush(f *os.File, mem []byte) error {
	return errors.Join(syncMapping(mem), f.Sync())
}

// close gives up the file and what is left of the mapping.
func (s *segment) close() error {
	mem := s.mem
	s.mem = nil
	return errors.Join(flush(s.file, mem), unmapFile(mem), s.file.Close())
}

// finished reports whether the file has served its purpose.
func (s *segment) finished() bool { return s.sealed && s.drained >= s.end && s.open == 0 }
