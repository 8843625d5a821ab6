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
//	24  4  position of the first token
//	28  4  tokens
//	32  4  CRC-32C of the content
//	36  4  CRC-32C of the bytes before
//	40     content: for each layer and token its key, then its value, float32
//
// The sums find damage; who sent the bytes is the transport's to prove.
const (
	kvMagic  = "WEIRMKV2"
	kvHeader = 40
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ExportKV appends the KV of s to dst: see engine.Runner.
func (r *Runner) ExportKV(dst []byte, s engine.Seq, from int) ([]byte, error) {
	if err := r.checkSeq(s); err != nil {
		return dst, err
	}
	held, start := r.cache.Held(int(s)), len(dst)
	if from < 0 || from > held {
		return dst, fmt.Errorf("export: sequence %d from position %d of %d", s, from, held)
	}
	n := held - from
	out := slices.Grow(dst, kvHeader+n*r.info.KVBytesPerToken)[:start+kvHeader]
	row := r.kvRow()
	for l := range r.shape.layers {
		for pos := from; pos < held; pos++ {
			r.cache.Get(row[:len(row)/2], row[len(row)/2:], int(s), l, pos)
			for _, x := range row {
				out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
			}
		}
	}
	h, content := out[start:start+kvHeader], out[start+kvHeader:]
	copy(h, kvMagic)
	copy(h[8:24], r.fingerprintSum())
	binary.LittleEndian.PutUint32(h[24:], uint32(from))
	binary.LittleEndian.PutUint32(h[28:], uint32(n))
	binary.LittleEndian.PutUint32(h[32:], crc32.Checksum(content, castagnoli))
	binary.LittleEndian.PutUint32(h[36:], crc32.Checksum(h[:36], castagnoli))
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
func (r *Runner) ImportKV(s engine.Seq, parts ...[]byte) (int, error) {
	if err := r.checkSeq(s); err != nil {
		return 0, err
	}
	if r.cache.Held(int(s)) != 0 {
		return 0, fmt.Errorf("import: sequence %d is not empty", s)
	}
	contents, n, err := r.unwrapAll(parts)
	if err != nil || n == 0 {
		return 0, err
	}
	if used := r.cache.Used(); used+n > r.info.KVTokens {
		return 0, fmt.Errorf("import of %d tokens: %d of %d held: %w", n, used, r.info.KVTokens, engine.ErrKVFull)
	}
	r.cache.Append(int(s), n)
	at := 0
	for _, content := range contents {
		at += r.putContent(int(s), at, content)
	}
	return n, nil
}

// putContent puts an envelope's content at a position and returns how many
// tokens it has.
func (r *Runner) putContent(s, at int, content []byte) int {
	n, row := len(content)/r.info.KVBytesPerToken, r.kvRow()
	for l := range r.shape.layers {
		for pos := at; pos < at+n; pos++ {
			for i := range row {
				row[i] = math.Float32frombits(binary.LittleEndian.Uint32(content[4*i:]))
			}
			content = content[4*len(row):]
			r.cache.Put(s, l, pos, row[:len(row)/2], row[len(row)/2:])
		}
	}
	return n
}

// unwrapAll checks envelopes that follow one another and returns their contents
// and the tokens in all of them.
func (r *Runner) unwrapAll(parts [][]byte) (contents [][]byte, n int, err error) {
	for _, data := range parts {
		content, err := r.unwrap(data, n)
		if err != nil {
			return nil, 0, err
		}
		if n += len(content) / r.info.KVBytesPerToken; n > r.info.Context {
			return nil, 0, fmt.Errorf("%w: %d tokens in a context of %d", engine.ErrKVFormat, n, r.info.Context)
		}
		contents = append(contents, content)
	}
	return contents, n, nil
}

// unwrap checks an envelope that begins at a position and returns its content.
func (r *Runner) unwrap(data []byte, from int) ([]byte, error) {
	bad := func(format string, a ...any) ([]byte, error) {
		return nil, fmt.Errorf("%w: %s", engine.ErrKVFormat, fmt.Sprintf(format, a...))
	}
	if len(data) < kvHeader || string(data[:8]) != kvMagic {
		return bad("no header")
	}
	h, content := data[:kvHeader], data[kvHeader:]
	if crc32.Checksum(h[:36], castagnoli) != binary.LittleEndian.Uint32(h[36:]) {
		return bad("header is damaged")
	}
	if !bytes.Equal(h[8:24], r.fingerprintSum()) {
		return bad("made by another model, runner or KV type")
	}
	if at := binary.LittleEndian.Uint32(h[24:]); int64(at) != int64(from) {
		return bad("it begins at position %d instead of %d", at, from)
	}
	tokens := binary.LittleEndian.Uint32(h[28:])
	if int64(tokens) > int64(r.info.Context) {
		return bad("%d tokens in a context of %d", tokens, r.info.Context)
	}
	if len(content) != int(tokens)*r.info.KVBytesPerToken {
		return bad("%d bytes are not %d tokens", len(content), tokens)
	}
	if crc32.Checksum(content, castagnoli) != binary.LittleEndian.Uint32(h[32:]) {
		return bad("content is damaged")
	}
	return content, nil
}
