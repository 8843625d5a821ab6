package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync"
)

const (
	logName = "decisions.wal"
	oldName = "decisions.1.wal"
)

// Options size a journal; zero values take the defaults.
type Options struct {
	// MaxBytes is the size at which the log becomes the old log and a new one
	// begins; at most two files are kept. Default 64 MiB.
	MaxBytes int64
	// SyncEvery records are forced to disk together. Default 64: a crash of the
	// machine may lose that many decisions, a crash of the process none.
	SyncEvery int
}

// Journal is the log of one folder. It is safe for concurrent use.
type Journal struct {
	dir string
	opt Options

	mu      sync.Mutex
	now     segment
	old     segment // what now was before it was full
	size    int64
	seq     uint64
	pending int
	buf     []byte
}

// Open opens the log in dir, which must exist, and creates it when it is not
// there. A torn end, as a crash leaves it, is cut off.
func Open(dir string, o Options) (*Journal, error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 64 << 20
	}
	o.MaxBytes = min(o.MaxBytes, math.MaxUint32) // places are so wide
	if o.SyncEvery <= 0 {
		o.SyncEvery = 64
	}
	f, err := os.OpenFile(filepath.Join(dir, logName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open decision log: %w", err)
	}
	j := &Journal{dir: dir, opt: o, now: segment{f, map[uint64]place{}}, old: segment{nil, map[uint64]place{}}}
	if err := j.recover(); err != nil {
		j.close()
		return nil, fmt.Errorf("open decision log: %w", err)
	}
	return j, nil
}

// recover finds the places of all records and the last whole one, also when it is
// in the old log.
func (j *Journal) recover() error {
	f, err := os.Open(filepath.Join(j.dir, oldName))
	if err == nil {
		j.old.f = f
		_, err = j.index(&j.old)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if j.size, err = j.index(&j.now); err != nil {
		return err
	}
	if err := j.now.f.Truncate(j.size); err != nil {
		return err
	}
	_, err = j.now.f.Seek(j.size, io.SeekStart)
	return err
}

func (j *Journal) index(s *segment) (size int64, err error) {
	return scan(s.f.Name(), func(r Record, at int64) error {
		j.seq = max(j.seq, r.Seq)
		s.note(&r, at)
		return nil
	})
}

// scan calls f for each whole record of a file and its offset, from the start, and
// returns the size of that whole part. A missing file has none.
func scan(path string, f func(r Record, at int64) error) (int64, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	r := bufio.NewReaderSize(file, 1<<16)
	var size int64
	var buf []byte
	for {
		var rec Record
		var n int
		rec, n, buf, err = readRecord(r, buf)
		if err != nil {
			return size, nil // the end, or what a crash left of it
		}
		if err := f(rec, size); err != nil {
			return size, err
		}
		size += int64(n)
	}
}

// Append writes a record and returns its number. After an error the log is as
// before.
func (j *Journal) Append(r Record) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.Seq = j.seq + 1
	var err error
	if j.buf, err = encode(j.buf[:0], &r); err != nil {
		return 0, err
	}
	if j.size > 0 && j.size+int64(len(j.buf)) > j.opt.MaxBytes {
		if err := j.rotate(); err != nil {
			return 0, fmt.Errorf("rotate decision log: %w", err)
		}
	}
	if _, err := j.now.f.Write(j.buf); err != nil {
		j.now.f.Truncate(j.size)
		j.now.f.Seek(j.size, io.SeekStart)
		return 0, fmt.Errorf("append decision: %w", err)
	}
	j.now.note(&r, j.size)
	j.size += int64(len(j.buf))
	j.seq = r.Seq
	if j.pending++; j.pending >= j.opt.SyncEvery {
		j.pending = 0
		if err := j.now.f.Sync(); err != nil {
			return r.Seq, fmt.Errorf("sync decision log: %w", err)
		}
	}
	return r.Seq, nil
}

func (j *Journal) rotate() error {
	if err := j.now.f.Sync(); err != nil {
		return err
	}
	path := filepath.Join(j.dir, logName)
	if err := os.Rename(path, filepath.Join(j.dir, oldName)); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	j.old.close()
	j.old, j.now, j.size, j.pending = j.now, segment{f, map[uint64]place{}}, 0, 0
	return syncDir(j.dir)
}

// Seq is the number of the last record.
func (j *Journal) Seq() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.seq
}

// Replay calls f for the records kept whose number is above after, in order.
func (j *Journal) Replay(after uint64, f func(Record) error) error {
	return Replay(j.dir, after, f)
}

// Replay reads the log in dir without opening it for writing.
func Replay(dir string, after uint64, f func(Record) error) error {
	later := func(r Record, _ int64) error {
		if r.Seq <= after {
			return nil
		}
		return f(r)
	}
	for _, name := range []string{oldName, logName} {
		if _, err := scan(filepath.Join(dir, name), later); err != nil {
			return fmt.Errorf("replay %s: %w", name, err)
		}
	}
	return nil
}

// Close forces what is pending to disk.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Join(j.now.f.Sync(), j.close())
}

func (j *Journal) close() error { return errors.Join(j.now.close(), j.old.close()) }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
