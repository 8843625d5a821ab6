package gguf

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// Content is a tensor to write. Data writes exactly Size bytes, so that a big
// model need not be in memory; its Offset is set by Write.
type Content struct {
	Tensor
	Data func(w io.Writer) error
}

// Write writes a file of version 3 with the default alignment of 32.
func Write(w io.Writer, meta []Entry, tensors []Content) error {
	head := &bytes.Buffer{}
	head.WriteString(magic)
	put(head, uint32(3), uint64(len(tensors)), uint64(len(meta)))
	for _, e := range meta {
		putText(head, e.Key)
		if err := putValue(head, e.Value); err != nil {
			return fmt.Errorf("metadata %q: %w", e.Key, err)
		}
	}
	var offset uint64
	for _, t := range tensors {
		n, ok := t.Size()
		if !ok {
			return fmt.Errorf("tensor %q: no size for %s of %v", t.Name, t.Type, t.Dims)
		}
		putText(head, t.Name)
		put(head, uint32(len(t.Dims)), t.Dims, uint32(t.Type), offset)
		offset += uint64(alignUp(int64(n), 32))
	}
	c := &counter{w: bufio.NewWriterSize(w, 1<<16)}
	if _, err := head.WriteTo(c); err != nil {
		return err
	}
	for _, t := range tensors {
		if err := c.pad(); err != nil {
			return err
		}
		if err := writeContent(c, t); err != nil {
			return err
		}
	}
	if err := c.pad(); err != nil {
		return err
	}
	return c.w.Flush()
}

func writeContent(c *counter, t Content) error {
	want, _ := t.Size()
	start := c.n
	if err := t.Data(c); err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if got := uint64(c.n - start); got != want {
		return fmt.Errorf("tensor %q: %d bytes written, want %d", t.Name, got, want)
	}
	return nil
}

// counter counts what was written, for padding.
type counter struct {
	w *bufio.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

func (c *counter) pad() error {
	_, err := c.Write(make([]byte, alignUp(c.n, 32)-c.n))
	return err
}

// put appends numbers to a buffer, which cannot fail.
func put(b *bytes.Buffer, values ...any) {
	for _, v := range values {
		_ = binary.Write(b, binary.LittleEndian, v)
	}
}

func putText(b *bytes.Buffer, s string) {
	put(b, uint64(len(s)))
	b.WriteString(s)
}

func putValue(b *bytes.Buffer, v any) error {
	switch v := v.(type) {
	case string:
		put(b, uint32(kindString))
		putText(b, v)
	case uint32:
		put(b, uint32(kindU32), v)
	case int32:
		put(b, uint32(kindI32), v)
	case uint64:
		put(b, uint32(kindU64), v)
	case float32:
		put(b, uint32(kindF32), v)
	case bool:
		put(b, uint32(kindBool), v)
	case []string:
		put(b, uint32(kindArray), uint32(kindString), uint64(len(v)))
		for _, s := range v {
			putText(b, s)
		}
	case []float32:
		put(b, uint32(kindArray), uint32(kindF32), uint64(len(v)), v)
	case []int32:
		put(b, uint32(kindArray), uint32(kindI32), uint64(len(v)), v)
	default:
		return fmt.Errorf("values of %T cannot be written", v)
	}
	return nil
}
