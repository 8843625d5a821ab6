package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

const (
	snapshotName    = "state.snap"
	snapshotVersion = 1
	// maxSnapshot bounds what is read back, bytes.
	maxSnapshot = 1 << 30
)

// ErrSnapshot says that a snapshot is damaged. The log's tail is then all.
var ErrSnapshot = errors.New("snapshot is damaged")

var snapshotMagic = [8]byte{'w', 'e', 'i', 'r', 's', 'n', 'a', 'p'}

// WriteSnapshot writes the learned state that covers all records up to seq: to
// a temporary file, forced to disk, then renamed, so that there is always one
// whole snapshot.
func WriteSnapshot(dir string, seq uint64, state func(io.Writer) error) error {
	var body bytes.Buffer
	if err := state(&body); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	f, err := os.CreateTemp(dir, ".state-*")
	if err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	defer os.Remove(f.Name()) // fails after the rename, and that is right
	head := append([]byte(nil), snapshotMagic[:]...)
	head = binary.LittleEndian.AppendUint32(head, snapshotVersion)
	head = binary.LittleEndian.AppendUint64(head, seq)
	head = binary.LittleEndian.AppendUint64(head, uint64(body.Len()))
	head = binary.LittleEndian.AppendUint32(head, checksum(head, body.Bytes()))
	_, errHead := f.Write(head)
	_, errBody := f.Write(body.Bytes())
	if err := errors.Join(errHead, errBody, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, snapshotName)); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return syncDir(dir)
}

func checksum(head, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, body)
}

// ReadSnapshot returns the last snapshot and the number of the last record that
// it covers; nil and 0 when there is none, ErrSnapshot when it is damaged.
func ReadSnapshot(dir string) (state []byte, seq uint64, err error) {
	f, err := os.Open(filepath.Join(dir, snapshotName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read snapshot: %w", err)
	}
	defer f.Close()
	var head [32]byte
	if _, err := io.ReadFull(f, head[:]); err != nil || !bytes.Equal(head[:8], snapshotMagic[:]) {
		return nil, 0, fmt.Errorf("%w: no header", ErrSnapshot)
	}
	if v := binary.LittleEndian.Uint32(head[8:]); v != snapshotVersion {
		return nil, 0, fmt.Errorf("%w: version %d", ErrSnapshot, v)
	}
	seq = binary.LittleEndian.Uint64(head[12:])
	n := binary.LittleEndian.Uint64(head[20:])
	info, err := f.Stat()
	if err != nil || n > maxSnapshot || uint64(info.Size()) != uint64(len(head))+n {
		return nil, 0, fmt.Errorf("%w: %d bytes announced", ErrSnapshot, n)
	}
	state = make([]byte, n)
	if _, err := io.ReadFull(f, state); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	if checksum(head[:28], state) != binary.LittleEndian.Uint32(head[28:]) {
		return nil, 0, fmt.Errorf("%w: checksum", ErrSnapshot)
	}
	return state, seq, nil
}
