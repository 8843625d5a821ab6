package llama

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/weirhq/weir/engine"
)

// Exported KV is an envelope around the rows of the cache, in order of position
// within each layer, K before V. All numbers are little-endian:
//
//	 0  8  magic "WEIRKV01"
//	 8 16  first half of SHA-256 of the fingerprint
//	24  4  position of the first token
//	28  4  tokens
//	32  8  bytes of content
//	40  4  CRC-32C of the content
//	44  4  CRC-32C of the bytes before
//	48     content
//
// The sums find damage; who sent the bytes is the transport's to prove. Even so
// no number that llama.cpp acts on comes from outside, except for models whose
// layout is not known: their content is llama.cpp's own state.
const (
	kvMagic  = "WEIRKV02"
	kvHeader = 48
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ExportKV appends the KV of s to dst: see engine.Runner. llama.cpp gives the
// state of a whole sequence, so a part costs as much time as the whole, about a
// millisecond per MiB, but not as many bytes.
func (r *Runner) ExportKV(dst []byte, s engine.Seq, from int) ([]byte, error) {
	if err := r.checkSeq(s); err != nil {
		return dst, err
	}
	held := r.held[s]
	if from < 0 || from > held || from > 0 && !r.layout.known() {
		return dst, fmt.Errorf("export: sequence %d from position %d of %d", s, from, held)
	}
	start, n := len(dst), held-from
	out := slices.Grow(dst, kvHeader+n*(r.info.KVBytesPerToken+cellBytes))[:start+kvHeader]
	if n > 0 {
		raw, err := r.getState(s)
		if err != nil {
			return dst, err
		}
		if out, err = r.appendContent(out, raw, from, held); err != nil {
			return dst, err
		}
	}
	h, content := out[start:start+kvHeader], out[start+kvHeader:]
	copy(h, kvMagic)
	copy(h[8:24], r.fingerprintSum())
	binary.LittleEndian.PutUint32(h[24:], uint32(from))
	binary.LittleEndian.PutUint32(h[28:], uint32(n))
	binary.LittleEndian.PutUint64(h[32:], uint64(len(content)))
	binary.LittleEndian.PutUint32(h[40:], crc32.Checksum(content, castagnoli))
	binary.LittleEndian.PutUint32(h[44:], crc32.Checksum(h[:44], castagnoli))
	return out, nil
}

// appendContent appends what an envelope carries of the state of held tokens,
// from a position on.
func (r *Runner) appendContent(dst, raw []byte, from, held int) ([]byte, error) {
	if !r.layout.known() {
		return append(dst, raw...), nil
	}
	v, err := parseState(raw)
	if err != nil || len(v.cell) != held || !v.equal(r.layout) {
		return dst, fmt.Errorf("export: llama.cpp gave a state that is not %d tokens of this model", held)
	}
	return v.appendRows(dst, from), nil
}

func (r *Runner) fingerprintSum() []byte {
	sum := sha256.Sum256([]byte(r.info.Fingerprint.String()))
	return sum[:16]
}

// ImportKV fills the empty sequence s: see engine.Runner. Bytes that fit but
// find no room give engine.ErrKVFull.
func (r *Runner) ImportKV(s engine.Seq, parts ...[]byte) (int, error) {
	if err := r.checkSeq(s); err != nil {
		return 0, err
	}
	if r.held[s] != 0 {
		return 0, fmt.Errorf("import: sequence %d is not empty", s)
	}
	n, contents, err := r.unwrapAll(parts)
	if err != nil || n == 0 {
		return 0, err
	}
	raw := contents[0].rows
	if r.layout.known() {
		at, streams := int(s), r.info.MaxSeqs
		if r.shared {
			at, streams = 0, 1
		}
		r.scratch = r.layout.appendState(r.scratch[:0], contents, n, at, streams)
		raw = r.scratch
	}
	if err := r.setState(s, n, raw); err != nil {
		return 0, err
	}
	r.held[s] = n
	return n, nil
}

// unwrapAll checks envelopes that follow one another and returns their contents
// and the tokens in all of them.
func (r *Runner) unwrapAll(parts [][]byte) (n int, contents []run, err error) {
	for _, data := range parts {
		c, err := r.unwrap(data, n)
		if err != nil {
			return 0, nil, err
		}
		if n += c.tokens; n > r.info.Context || len(parts) > 1 && !r.layout.known() {
			return 0, nil, fmt.Errorf("%w: %d tokens in %d parts", engine.ErrKVFormat, n, len(parts))
		}
		contents = append(contents, c)
	}
	return n, contents, nil
}

// unwrap checks an envelope that begins at a position and returns its content.
func (r *Runner) unwrap(data []byte, from int) (run, error) {
	bad := func(format string, a ...any) (run, error) {
		return run{}, fmt.Errorf("%w: %s", engine.ErrKVFormat, fmt.Sprintf(format, a...))
	}
	if len(data) < kvHeader || string(data[:8]) != kvMagic {
		return bad("no header")
	}
	h, content := data[:kvHeader], data[kvHeader:]
	if crc32.Checksum(h[:44], castagnoli) != binary.LittleEndian.Uint32(h[44:]) {
		return bad("header is damaged")
	}
	if !bytes.Equal(h[8:24], r.fingerprintSum()) {
		return bad("made by another model, llama.cpp or KV type")
	}
	if at := binary.LittleEndian.Uint32(h[24:]); int64(at) != int64(from) {
		return bad("it begins at position %d instead of %d", at, from)
	}
	if want := binary.LittleEndian.Uint64(h[32:]); want != uint64(len(content)) {
		return bad("%d bytes of content instead of %d", len(content), want)
	}
	tokens := binary.LittleEndian.Uint32(h[28:])
	if tokens > uint32(r.info.Context) {
		return bad("%d tokens in a context of %d", tokens, r.info.Context)
	}
	n := int(tokens)
	if (n == 0) != (len(content) == 0) || r.layout.known() && len(content) != n*r.layout.rowBytes() {
		return bad("%d bytes are not %d tokens", len(content), n)
	}
	if crc32.Checksum(content, castagnoli) != binary.LittleEndian.Uint32(h[40:]) {
		return bad("content is damaged")
	}
	return run{n, content}, nil
}

// getState returns llama.cpp's state of s; it is valid until scratch is used
// again.
func (r *Runner) getState(s engine.Seq) ([]byte, error) {
	size := int(llama.StateSeqGetSize(r.ctx, llama.SeqId(s)))
	r.scratch = slices.Grow(r.scratch[:0], size)[:size]
	if got := int(llama.StateSeqGetData(r.ctx, r.scratch, llama.SeqId(s))); got != size {
		return nil, fmt.Errorf("llama.cpp wrote %d of %d bytes of state of sequence %d", got, size, s)
	}
	return r.scratch, nil
}

// setState gives the empty sequence s the n tokens of a state.
func (r *Runner) setState(s engine.Seq, n int, raw []byte) error {
	seq := llama.SeqId(s)
	if int(llama.StateSeqSetData(r.ctx, raw, seq)) != len(raw) {
		if err := r.cut(s, 0); err != nil {
			return err
		}
		if r.layout.known() {
			return fmt.Errorf("import of %d tokens: %w", n, engine.ErrKVFull)
		}
		return fmt.Errorf("%w: llama.cpp refuses the state", engine.ErrKVFormat)
	}
	last, err := llama.MemorySeqPosMax(r.mem, seq)
	if err != nil || int(last) != n-1 {
		if err := r.cut(s, 0); err != nil {
			return err
		}
		return fmt.Errorf("%w: state ends at position %d of %d", engine.ErrKVFormat, last, n)
	}
	return nil
}

// copyState fills the empty dst with what src holds, by value. llama_memory_seq_cp
// between separate buffers copies whole buffers, and only at the next decode,
// by when src may hold something else.
func (r *Runner) copyState(dst, src engine.Seq) error {
	raw, err := r.getState(src)
	if err != nil {
		return err
	}
	return r.setState(dst, r.held[src], raw)
}
