package llama

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"unsafe"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/jupiterrider/ffi"
	"github.com/weirhq/weir/engine"
)

// pieces is the text of every token, read once, so that Piece needs no call
// into the library.
type pieces struct {
	text []byte
	at   []uint32 // token t is text[at[t]:at[t+1]]
	end  []bool
}

func (r *Runner) readVocab() {
	n := int(llama.VocabNTokens(r.vocab))
	p := pieces{at: make([]uint32, 1, n+1), end: make([]bool, n)}
	buf := make([]byte, 64)
	for t := range llama.Token(n) {
		size := llama.TokenToPiece(r.vocab, t, buf, 0, false)
		if size < 0 {
			buf = make([]byte, -size)
			size = llama.TokenToPiece(r.vocab, t, buf, 0, false)
		}
		p.text = append(p.text, buf[:max(size, 0)]...)
		p.at = append(p.at, uint32(len(p.text)))
		p.end[t] = llama.VocabIsEOG(r.vocab, t)
	}
	r.pieces = p
}

// Piece appends the bytes of t to dst.
func (r *Runner) Piece(dst []byte, t engine.Token) []byte {
	if t < 0 || int(t) >= len(r.pieces.end) {
		return dst
	}
	return append(dst, r.pieces.text[r.pieces.at[t]:r.pieces.at[t+1]]...)
}

// IsEnd reports whether t ends a generation.
func (r *Runner) IsEnd(t engine.Token) bool {
	return t >= 0 && int(t) < len(r.pieces.end) && r.pieces.end[t]
}

// Tokenize turns text into tokens; invalid UTF-8 becomes U+FFFD first, because
// some of llama.cpp's tokenizers throw on it.
func (r *Runner) Tokenize(text string, special bool) ([]engine.Token, error) {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if text == "" {
		return nil, nil
	}
	if len(text) > math.MaxInt32/4 {
		return nil, fmt.Errorf("tokenize: text of %d bytes is too long", len(text))
	}
	tokens := make([]engine.Token, len(text)+8)
	n := r.tokenize(tokens, text, special)
	if n < 0 && n != math.MinInt32 {
		tokens = make([]engine.Token, -n)
		n = r.tokenize(tokens, text, special)
	}
	if n < 0 {
		return nil, fmt.Errorf("tokenize: llama.cpp refuses a text of %d bytes", len(text))
	}
	return tokens[:n], nil
}

// tokenize calls llama_tokenize; yzma's wrapper cannot pass a NUL byte.
func (r *Runner) tokenize(dst []engine.Token, text string, special bool) int32 {
	var (
		result     ffi.Arg
		in         = unsafe.StringData(text)
		inLen      = int32(len(text))
		out        = unsafe.SliceData(dst)
		outLen     = int32(len(dst))
		add, parse uint8
	)
	if special {
		parse = 1
	}
	library.api.tokenize.Call(&result, &r.vocab, &in, &inLen, &out, &outLen, &add, &parse)
	runtime.KeepAlive(text)
	runtime.KeepAlive(dst)
	return int32(result)
}
