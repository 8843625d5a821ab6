package moe

import (
	"bytes"
	"io"

	"github.com/weirhq/weir/experts/load"
)

// Read reads a model from bytes, for tests.
func Read(data []byte) error {
	f, err := read(bytes.NewReader(data), int64(len(data)))
	if err == nil && len(f.weights.layers) != f.shape.layers {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Counted is how many tokens of prompts wait to be looked at by the balancer.
func (r *Runner) Counted() int64 {
	r.moe.mu.Lock()
	defer r.moe.mu.Unlock()
	return r.moe.load[load.Prefill].Pending()
}
