package llama

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/weirhq/weir/engine"
)

// layout is how a plain attention cache lays out the state of a sequence
// (llama.cpp 0.4 and 0.5, class llama_kv_cache):
//
//	magic, sequence, number of streams
//	for each stream: number of cells, and where that is not 0
//	    for each cell: position, number of sequences (1), sequence
//	    V transposed?, number of layers
//	    for each layer: K type, bytes per row (8 bytes), one row per cell
//	    for each layer: V the same
//
// Numbers are 4 bytes where nothing else is said. Only the rows differ from one
// state to the next of the same length, so only they leave the process.
type layout struct {
	magic      uint32
	keys, vals []rowKind // by layer
}

// rowKind is the ggml type of a layer's K or V and its bytes per token.
type rowKind struct {
	kind  int32
	bytes int
}

const (
	cellBytes = 12 // position, number of sequences, sequence
	kindBytes = 12 // type, bytes per row
)

// known is false for caches of another shape (sliding window, recurrent,
// transposed V), whose states only llama.cpp can take apart.
func (l layout) known() bool { return len(l.keys) > 0 }

func (l layout) equal(o layout) bool {
	return l.magic == o.magic && slices.Equal(l.keys, o.keys) && slices.Equal(l.vals, o.vals)
}

// rowBytes is the size of one token's rows over all layers.
func (l layout) rowBytes() (n int) {
	for _, k := range l.kinds() {
		n += k.bytes
	}
	return n
}

func (l layout) kinds() []rowKind { return slices.Concat(l.keys, l.vals) }

// format names the element types for a fingerprint, e.g. "f16/f16".
func (l layout) format() string {
	if !l.known() {
		return "llama.cpp state"
	}
	return fmt.Sprintf("%s/%s", llama.GGMLType(l.keys[0].kind), llama.GGMLType(l.vals[0].kind))
}

// errState says that bytes are no state of a plain attention cache.
var errState = errors.New("not a state of one sequence with consecutive positions")

// view is a state taken apart: where each token's rows are.
type view struct {
	layout
	cell []int    // position to index of its cell
	rows [][]byte // by kind, K layers before V layers; one row per cell
}

// reader reads little-endian numbers and remembers when they ran out.
type reader struct {
	data []byte
	bad  bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.data) {
		r.bad = true
		return make([]byte, 8)
	}
	out := r.data[:n]
	r.data = r.data[n:]
	return out
}

func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

// parseState takes a state apart. It wants the positions 0, 1, ... in any order
// and nothing after the last row.
func parseState(data []byte) (view, error) {
	r := reader{data: data}
	v := view{layout: layout{magic: r.u32()}}
	r.u32() // the sequence's number where it was exported
	for streams := r.u32(); streams > 0 && !r.bad; streams-- {
		cells := r.u32()
		if cells == 0 {
			continue
		}
		if v.cell != nil || !v.readCells(&r, int(cells)) {
			return view{}, errState
		}
		transposed, layers := r.u32() != 0, int(r.u32())
		if transposed || layers > len(r.data)/kindBytes {
			return view{}, errState
		}
		v.keys, v.vals = v.readRows(&r, layers), v.readRows(&r, layers)
	}
	if r.bad || len(r.data) > 0 {
		return view{}, errState
	}
	return v, nil
}

// readCells reads which cell holds which position.
func (v *view) readCells(r *reader, n int) bool {
	if n > len(r.data)/cellBytes {
		return false
	}
	v.cell = slices.Repeat([]int{-1}, n)
	for i := range n {
		pos, seqs, _ := r.u32(), r.u32(), r.u32()
		if pos >= uint32(n) || v.cell[pos] >= 0 || seqs != 1 {
			return false
		}
		v.cell[pos] = i
	}
	return true
}

// readRows reads the kind of each layer's rows, and the rows.
func (v *view) readRows(r *reader, layers int) []rowKind {
	kinds := make([]rowKind, layers)
	for i := range kinds {
		kind, size := int32(r.u32()), r.u64()
		if size > uint64(len(r.data)/len(v.cell)) {
			r.bad = true
			return nil
		}
		kinds[i] = rowKind{kind, int(size)}
		v.rows = append(v.rows, r.take(int(size)*len(v.cell)))
	}
	return kinds
}

// appendRows appends the rows from a position on, in order of position.
func (v *view) appendRows(dst []byte, from int) []byte {
	ordered := slices.IsSorted(v.cell)
	for i, k := range v.kinds() {
		if ordered {
			dst = append(dst, v.rows[i][from*k.bytes:]...)
			continue
		}
		for _, c := range v.cell[from:] {
			dst = append(dst, v.rows[i][c*k.bytes:(c+1)*k.bytes]...)
		}
	}
	return dst
}

// run is the rows of some tokens, as appendRows gives them.
type run struct {
	tokens int
	rows   []byte // tokens times rowBytes
}

// appendState builds the state of n tokens from runs that follow one another, as
// stream at of streams.
func (l layout) appendState(dst []byte, runs []run, n, at, streams int) []byte {
	le := binary.LittleEndian
	u32 := func(x int) { dst = le.AppendUint32(dst, uint32(x)) }
	dst = le.AppendUint32(dst, l.magic)
	u32(at)
	u32(streams)
	for range at {
		u32(0)
	}
	u32(n)
	for i := range n {
		u32(i)
		u32(1)
		u32(at)
	}
	u32(0) // V is not transposed
	u32(len(l.keys))
	above := 0 // bytes of one token's rows of the kinds before
	for _, k := range l.kinds() {
		dst = le.AppendUint32(dst, uint32(k.kind))
		dst = le.AppendUint64(dst, uint64(k.bytes))
		for _, r := range runs {
			dst = append(dst, r.rows[r.tokens*above:r.tokens*(above+k.bytes)]...)
		}
		above += k.bytes
	}
	for range streams - at - 1 {
		u32(0)
	}
	return dst
}

// learnLayout decodes two tokens and looks at the state: how it is laid out and
// how many bytes a token takes. It also warms the context up.
func (r *Runner) learnLayout() error {
	first := max(r.info.BOS, 0)
	var sizes [2]int
	for i := range sizes {
		if _, err := r.Step([]engine.Span{{Pos: i, Tokens: []engine.Token{first}}}); err != nil {
			return fmt.Errorf("%w: first steps: %w", engine.ErrModel, err)
		}
		sizes[i] = int(llama.StateSeqGetSize(r.ctx, 0))
	}
	raw, err := r.getState(0)
	if err != nil {
		return fmt.Errorf("%w: %w", engine.ErrModel, err)
	}
	r.info.KVBytesPerToken = max(sizes[1]-sizes[0]-cellBytes, 0)
	if v, err := parseState(raw); err == nil && len(v.cell) == 2 && v.rowBytes() == r.info.KVBytesPerToken {
		r.layout = v.layout
	}
	r.info.Fingerprint.KV = r.layout.format()
	r.info.KVWhole = !r.layout.known()
	return r.Forget(0, 0)
}
