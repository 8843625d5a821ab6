package moe

import (
	"fmt"
	"os"

	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/moe/shard"
)

// reload reads one expert from the model file again, for shard.Set, which
// compares its checksum with the one it was loaded with.
func reload(path string, s shape) func(layer, expert int) (*shard.Expert, error) {
	return func(layer, expert int) (*shard.Expert, error) {
		h, size, err := open(path)
		if err != nil {
			return nil, err
		}
		defer h.Close()
		head, err := gguf.Read(h, size)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		l := &loader{f: head, r: h}
		return l.expert(&s, layer, expert)
	}
}

// open opens a file and tells its size.
func open(path string) (*os.File, int64, error) {
	h, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	st, err := h.Stat()
	if err != nil {
		h.Close()
		return nil, 0, err
	}
	return h, st.Size(), nil
}
