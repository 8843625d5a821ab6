package moe

import (
	"bytes"
	"io"
)

// Read reads a model from bytes, for tests.
func Read(data []byte) error {
	f, err := read(bytes.NewReader(data), int64(len(data)))
	if err == nil && len(f.weights.layers) != f.shape.layers {
		return io.ErrUnexpectedEOF
	}
	return err
}
