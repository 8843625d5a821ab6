package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

const magic = "GGUF"

// Read reads the head of a file of size bytes and checks that every tensor of a
// known type lies within it. Errors wrap ErrFormat, or are those of r.
func Read(r io.ReaderAt, size int64) (*File, error) {
	d := &decoder{r: bufio.NewReader(io.NewSectionReader(r, 0, size)), left: size}
	f, err := d.file()
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool, len(f.Tensors))
	for _, t := range f.Tensors {
		if seen[t.Name] {
			return nil, fmt.Errorf("%w: tensor %q stands twice", ErrFormat, t.Name)
		}
		seen[t.Name] = true
		if err := f.checkExtent(t, size); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// checkExtent checks that t's data is aligned and within the file.
func (f *File) checkExtent(t Tensor, size int64) error {
	room := uint64(max(size-f.DataOffset, 0))
	n, known := t.Size()
	if _, typed := blocks[t.Type]; typed && !known {
		return fmt.Errorf("%w: tensor %q has impossible dimensions %v", ErrFormat, t.Name, t.Dims)
	}
	if t.Offset%uint64(f.Alignment) != 0 || t.Offset > room || n > room-t.Offset {
		return fmt.Errorf("%w: tensor %q lies outside the file: it may be cut off", ErrFormat, t.Name)
	}
	return nil
}

// decoder reads numbers and counts the bytes that are left, so that no length
// in the file can ask for more memory than the file has bytes.
type decoder struct {
	r    *bufio.Reader
	left int64
	buf  [8]byte
}

func (d *decoder) bytes(n int) ([]byte, error) {
	if int64(n) > d.left {
		return nil, fmt.Errorf("%w: it ends early", ErrFormat)
	}
	b := d.buf[:min(n, 8)]
	if n > 8 {
		b = make([]byte, n)
	}
	if _, err := io.ReadFull(d.r, b); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: it ends early", ErrFormat)
		}
		return nil, fmt.Errorf("read GGUF: %w", err)
	}
	d.left -= int64(n)
	return b, nil
}

func (d *decoder) u32() (uint32, error) {
	b, err := d.bytes(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (d *decoder) u64() (uint64, error) {
	b, err := d.bytes(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// text reads a string of at most limit bytes.
func (d *decoder) text(limit uint64) (string, error) {
	n, err := d.u64()
	if err != nil {
		return "", err
	}
	if n > limit || n > uint64(d.left) {
		return "", fmt.Errorf("%w: a string of %d bytes", ErrFormat, n)
	}
	b, err := d.bytes(int(n))
	return string(b), err
}

// count reads a number of things, each of which takes at least width bytes.
func (d *decoder) count(what string, limit, width uint64) (int, error) {
	n, err := d.u64()
	if err != nil {
		return 0, err
	}
	if n > limit || n > uint64(d.left)/width {
		return 0, fmt.Errorf("%w: %d %s", ErrFormat, n, what)
	}
	return int(n), nil
}

func (d *decoder) file() (*File, error) {
	size := d.left
	head, err := d.bytes(4)
	if err != nil {
		return nil, err
	}
	if string(head) != magic {
		return nil, fmt.Errorf("%w: it does not begin with GGUF", ErrFormat)
	}
	f := &File{}
	if f.Version, err = d.u32(); err != nil {
		return nil, err
	}
	if f.Version != 2 && f.Version != 3 {
		return nil, fmt.Errorf("%w: version %d, want 2 or 3, little-endian", ErrFormat, f.Version)
	}
	tensors, err := d.count("tensors", maxEntries, 24)
	if err != nil {
		return nil, err
	}
	entries, err := d.count("metadata entries", maxEntries, 13)
	if err != nil {
		return nil, err
	}
	if err := d.meta(f, entries); err != nil {
		return nil, err
	}
	for range tensors {
		t, err := d.tensor()
		if err != nil {
			return nil, err
		}
		f.Tensors = append(f.Tensors, t)
	}
	f.DataOffset = alignUp(size-d.left, int64(f.Alignment))
	return f, nil
}

func alignUp(n, to int64) int64 { return (n + to - 1) / to * to }

// meta reads the metadata and the alignment in it.
func (d *decoder) meta(f *File, entries int) error {
	for range entries {
		key, err := d.text(maxKey)
		if err != nil {
			return err
		}
		kind, err := d.u32()
		if err != nil {
			return err
		}
		value, err := d.value(kind)
		if err != nil {
			return fmt.Errorf("metadata %q: %w", key, err)
		}
		f.Meta = append(f.Meta, Entry{key, value})
	}
	f.Alignment = 32
	if a, ok := f.Int("general.alignment"); ok {
		if a < 1 || a > maxAlignment || a&(a-1) != 0 {
			return fmt.Errorf("%w: alignment %d", ErrFormat, a)
		}
		f.Alignment = uint32(a)
	}
	return nil
}

func (d *decoder) tensor() (t Tensor, err error) {
	if t.Name, err = d.text(maxKey); err != nil {
		return t, err
	}
	dims, err := d.u32()
	if err != nil {
		return t, err
	}
	if dims < 1 || dims > maxDims {
		return t, fmt.Errorf("%w: tensor %q has %d dimensions", ErrFormat, t.Name, dims)
	}
	for range dims {
		n, err := d.u64()
		if err != nil {
			return t, err
		}
		if n == 0 || n > math.MaxInt32 {
			return t, fmt.Errorf("%w: tensor %q has a dimension of %d", ErrFormat, t.Name, n)
		}
		t.Dims = append(t.Dims, n)
	}
	kind, err := d.u32()
	if err != nil {
		return t, err
	}
	t.Type = Type(kind)
	t.Offset, err = d.u64()
	return t, err
}
