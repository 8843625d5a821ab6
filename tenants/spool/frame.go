package spool

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A segment file is a header and frames, all little-endian, zero behind the
// last frame:
//
//	header, 64 bytes
//	   0  magic "weirspl1"
//	   8  sequence number of the segment
//	  16  CRC-32C of the 16 bytes before
//	  24  how far it has been delivered: the offset of a frame; changes in place
//	frame, a multiple of 8 bytes
//	   0  length of the payload; written last, so that a frame is there or not
//	   4  CRC-32C of sequence number, offset, kind and payload
//	   8  kind
//	   9  settled: on an admission 1 once it has a settlement; changes in place
//	  12  payload: a record
const (
	magic      = "weirspl1"
	headerSize = 64
	sumAt      = 16
	drainedAt  = 24

	frameHead = 12
	kindAt    = 8
	settledAt = 9
)

// Kinds of frames.
const (
	kindAdmission  byte = 1
	kindSettlement byte = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frameSize is what a payload takes in a segment.
func frameSize(payload int) int64 { return int64(frameHead+payload+7) &^ 7 }

// sumHead is what a frame's checksum covers before the payload: a frame that
// was copied elsewhere does not match.
const sumHead = 17

func appendSumHead(b []byte, seq uint64, off int64, kind byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, seq)
	b = binary.LittleEndian.AppendUint64(b, uint64(off))
	return append(b, kind)
}

func makeHeader(seq uint64) []byte {
	h := make([]byte, headerSize)
	copy(h, magic)
	binary.LittleEndian.PutUint64(h[8:], seq)
	binary.LittleEndian.PutUint32(h[sumAt:], crc32.Checksum(h[:sumAt], castagnoli))
	binary.LittleEndian.PutUint64(h[drainedAt:], headerSize)
	return h
}

var errHeader = errors.New("not a spool segment")

// readHeader returns a segment's sequence number and how far it was delivered.
func readHeader(r io.ReaderAt) (seq uint64, drained int64, err error) {
	h := make([]byte, headerSize)
	if _, err := r.ReadAt(h, 0); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", errHeader, err)
	}
	if string(h[:len(magic)]) != magic || crc32.Checksum(h[:sumAt], castagnoli) != binary.LittleEndian.Uint32(h[sumAt:]) {
		return 0, 0, errHeader
	}
	seq = binary.LittleEndian.Uint64(h[8:])
	// A torn write of the mark only means that more is delivered again.
	drained = int64(binary.LittleEndian.Uint64(h[drainedAt:]))
	if drained < headerSize || drained%8 != 0 {
		drained = headerSize
	}
	return seq, drained, nil
}

// frame is one frame as read. Payload is valid until the next call.
type frame struct {
	off     int64
	kind    byte
	settled bool
	payload []byte
}

func (f *frame) end() int64 { return f.off + frameSize(len(f.payload)) }

// frames reads frames one after the other.
type frames struct {
	r    *bufio.Reader
	seq  uint64
	off  int64 // of the next frame
	to   int64 // end of what may be read
	torn int   // frames whose checksum did not match
	sum  []byte
}

func readFrames(r io.ReaderAt, seq uint64, from, to int64) *frames {
	from = min(from, to)
	return &frames{r: bufio.NewReaderSize(io.NewSectionReader(r, from, to-from), 64<<10), seq: seq, off: from, to: to}
}

// next returns the next whole frame. Frames that a crash has torn are skipped
// and counted. io.EOF is the end; other errors are of reading.
func (fs *frames) next() (frame, error) {
	for {
		var head [frameHead]byte
		if fs.off+frameHead > fs.to {
			return frame{}, io.EOF
		}
		if _, err := io.ReadFull(fs.r, head[:]); err != nil {
			return frame{}, eof(err)
		}
		n := int64(binary.LittleEndian.Uint32(head[:]))
		if n == 0 {
			return frame{}, io.EOF
		}
		size := frameSize(int(n))
		if n > maxRecord || fs.off+size > fs.to {
			fs.torn++ // no telling where the next one starts
			return frame{}, io.EOF
		}
		fs.sum = appendSumHead(fs.sum[:0], fs.seq, fs.off, head[kindAt])
		fs.sum = append(fs.sum, make([]byte, size-frameHead)...)
		if _, err := io.ReadFull(fs.r, fs.sum[sumHead:]); err != nil {
			return frame{}, eof(err)
		}
		f := frame{off: fs.off, kind: head[kindAt], settled: head[settledAt] != 0, payload: fs.sum[sumHead : sumHead+n]}
		fs.off += size
		if crc32.Checksum(fs.sum[:sumHead+n], castagnoli) == binary.LittleEndian.Uint32(head[4:]) {
			return f, nil
		}
		fs.torn++
	}
}

func eof(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return io.EOF
	}
	return err
}
