package moe

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/weirhq/weir/engine"
)

// Exported KV is an envelope around keys and values. All numbers are
// little-endian:
//
//	 0  8  magic "WEIRMKV1"
//	 8 16  first half of SHA-256 of the fingerprint
//	24  4  tokens
//	28  4  CRC-32C of the content
//	32  4  CRC-32C of the bytes before
//	36     content: for each layer and token its key, then its value, float32
//
// The sums find damage; who sent the bytes is the transport's to prove.
const (
	kvMagic  = "WEIRMKV1"
	kvHeader = 36
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ExportKV appends the KV of s to dst: see engine.Runner.
func (r *Runner) ExportKV(dst []byte, s engine.Seq) ([]byte, error) {
	if err := r.checkSeq(s); err != nil {
		return dst, err
	}
	n, start := r.cache.Held(int(s)), len(dst)
	out := slices.Grow(dst, kvHeader+n*r.info.KVBytesPerToken)[:start+kvHeader]
	row := r.kvRow()
	for l := range r.shape.layers {
		for pos := range n {
			r.cache.Get(row[:len(row)/2], row[len(row)/2:], int(s), l, pos)
			for _, x := range row {
				out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
			}
		}
	}
	h, content := out[start:start+kvHeader], out[start+kvHeader:]
	copy(h, kvMagic)
	copy(h[8:24], r.fingerprintSum())
	binary.LittleEndian.PutUint32(h[24:], uint32(n))
	binary.LittleEndian.PutUint32(h[28:], crc32.Checksum(content, castagnoli))
	binary.LittleEndian.PutUint32(h[32:], crc32.Checksum(h[:32], castagnoli))
	return out, nil
}

// kvRow is room for one token's key and value of one layer.
func (r *Runner) kvRow() []float32 { return r.space.kv }

func (r *Runner) fingerprintSum() []byte {
	sum := sha256.Sum256([]byte(r.info.Fingerprint.String()))
	return sum[:16]
}

// ImportKV fills the empty sequence s: see engine.Runner. Bytes that fit but
// find no room give engine.ErrKVFull.
func (r *Runner) ImportKV(s engine.Seq, data []byte) (int, error) {
	if err := r.checkSeq(s); err != nil {
		return 0, err
	}
	if r.cache.Held(int(s)) != 0 {
		return 0, fmt.Errorf("import: sequence %d is not empty", s)
	}
	n, content, err := r.unwrap(data)
	if err != nil || n == 0 {
		return 0, err
	}
	if used := r.cache.Used(); used+n > r.info.KVTokens {
		return 0, fmt.Errorf("import of %d tokens: %d of %d held: %w", n, used, r.info.KVTokens, engine.ErrKVFull)
	}
	r.cache.Append(int(s), n)
	row := r.kvRow()
	for l := range r.shape.layers {
		for pos := range n {
			for i := range row {
				row[i] = math.Float32frombits(binary.LittleEndian.Uint32(content[4*i:]))
			}
			content = content[4*len(row):]
			r.cache.Put(int(s), l, pos, row[:len(row)/2], row[len(row)/2:])
		}
	}
	return n, nil
}

// unwrap checks an envelope and returns its content.
func (r *Runner) unwrap(data []byte) (n int, content []byte, err error) {
	bad := func(format string, a ...any) (int, []byte, error) {
		return 0, nil, fmt.Errorf("%w: %s", engine.ErrKVFormat, fmt.Sprintf(format, a...))
	}
	if len(data) < kvHeader || string(data[:8]) != kvMagic {
		return bad("no header")
	}
	h, content := data[:kvHeader], data[kvHeader:]
	if crc32.Checksum(h[:32], castagnoli) != binary.LittleEndian.Uint32(h[32:]) {
		return bad("header is damaged")
	}
	if !bytes.Equal(h[8:24], r.fingerprintSum()) {
		return bad("made by another model, runner or KV type")
	}
	tokens := binary.LittleEndian.Uint32(h[24:])
	if int64(tokens) > int64(r.info.Context) {
		return bad("%d tokens in a context of %d", tokens, r.info.Context)
	}
	n = int(tokens)
	if len(content) != n*r.info.KVBytesPerToken {
		return bad("%d bytes are not %d tokens", len(content), n)
	}
	if crc32.Checksum(content, castagnoli) != binary.LittleEndian.Uint32(h[28:]) {
		return bad("content is damaged")
	}
	return n, content, nil
}
