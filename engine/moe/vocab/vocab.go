// Package vocab is a byte-level vocabulary: one token per byte, beside control
// tokens. The bundled models and those of engine/gguf/random have one.
package vocab

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/gguf"
)

// ErrKind says that a file's vocabulary is of another kind.
var ErrKind = errors.New("vocabulary is not one token per byte")

// Kinds of tokens in GGUF (llama_token_type).
const (
	kindUnknown = 2
	kindControl = 3
	kindUser    = 4
	kindByte    = 6
)

// space is how SentencePiece writes a space; text that holds it means a space.
const space = "\u2581"

// Vocab maps bytes to tokens and back.
type Vocab struct {
	BOS, EOS engine.Token // -1 where there is none
	ofByte   [256]engine.Token
	pieces   []string
	end      []bool
	special  []marker // longest first
	prefix   bool     // a text begins with a space of its own
}

type marker struct {
	text  string
	token engine.Token
}

// Read takes the vocabulary of a GGUF file.
func Read(f *gguf.File) (*Vocab, error) {
	tokens, _ := f.Value("tokenizer.ggml.tokens").([]string)
	kinds, _ := f.Value("tokenizer.ggml.token_type").([]int32)
	if f.Text("tokenizer.ggml.model") != "llama" || len(tokens) == 0 || len(kinds) != len(tokens) {
		return nil, fmt.Errorf("%w: tokenizer %q with %d tokens and %d kinds", ErrKind, f.Text("tokenizer.ggml.model"), len(tokens), len(kinds))
	}
	v := &Vocab{BOS: -1, EOS: -1, pieces: make([]string, len(tokens)), end: make([]bool, len(tokens)), prefix: true}
	for i := range v.ofByte {
		v.ofByte[i] = -1
	}
	for i, text := range tokens {
		if err := v.add(engine.Token(i), text, kinds[i]); err != nil {
			return nil, err
		}
	}
	if at := slices.Index(v.ofByte[:], -1); at >= 0 {
		return nil, fmt.Errorf("%w: no token for byte %#02x", ErrKind, at)
	}
	slices.SortStableFunc(v.special, func(a, b marker) int { return len(b.text) - len(a.text) })
	return v, v.readEnds(f)
}

// add takes one token.
func (v *Vocab) add(t engine.Token, text string, kind int32) error {
	switch kind {
	case kindControl, kindUnknown, kindUser:
		if text != "" {
			v.special = append(v.special, marker{text, t})
		}
		if kind == kindUser {
			v.pieces[t] = text
		}
		return nil
	case kindByte:
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(text, "<0x"), ">"), 16, 8)
		if err != nil || len(text) != 6 {
			return fmt.Errorf("%w: byte token %d is %q", ErrKind, t, text)
		}
		return v.setByte(byte(n), t)
	}
	if text == space {
		text = " "
	}
	if len(text) != 1 {
		return fmt.Errorf("%w: token %d is %q; use the llama runner for this model", ErrKind, t, text)
	}
	return v.setByte(text[0], t)
}

func (v *Vocab) setByte(b byte, t engine.Token) error {
	if v.ofByte[b] >= 0 {
		return fmt.Errorf("%w: tokens %d and %d are both byte %#02x", ErrKind, v.ofByte[b], t, b)
	}
	v.ofByte[b], v.pieces[t] = t, string([]byte{b})
	return nil
}

// endings are the names of control tokens that end a turn in common templates.
var endings = []string{"<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<end_of_turn>"}

// readEnds finds the tokens that begin and end a generation.
func (v *Vocab) readEnds(f *gguf.File) error {
	id := func(key string) (engine.Token, error) {
		n, ok := f.Int("tokenizer.ggml." + key)
		if !ok {
			return -1, nil
		}
		if n < 0 || n >= int64(len(v.pieces)) {
			return -1, fmt.Errorf("%w: %s is %d of %d", ErrKind, key, n, len(v.pieces))
		}
		return engine.Token(n), nil
	}
	bos, err := id("bos_token_id")
	if err != nil {
		return err
	}
	if add, ok := f.Value("tokenizer.ggml.add_bos_token").(bool); add || !ok {
		v.BOS = bos
	}
	if v.EOS, err = id("eos_token_id"); err != nil {
		return err
	}
	eot, err := id("eot_token_id")
	if err != nil {
		return err
	}
	for _, t := range []engine.Token{v.EOS, eot} {
		if t >= 0 {
			v.end[t] = true
		}
	}
	for _, m := range v.special {
		if slices.Contains(endings, m.text) {
			v.end[m.token] = true
		}
	}
	if add, ok := f.Value("tokenizer.ggml.add_space_prefix").(bool); ok {
		v.prefix = add
	}
	return nil
}

// Len is the number of tokens.
func (v *Vocab) Len() int { return len(v.pieces) }

// Piece appends the bytes of t to dst; control tokens have none.
func (v *Vocab) Piece(dst []byte, t engine.Token) []byte {
	if t < 0 || int(t) >= len(v.pieces) {
		return dst
	}
	return append(dst, v.pieces[t]...)
}

// IsEnd reports whether t ends a generation.
func (v *Vocab) IsEnd(t engine.Token) bool { return t >= 0 && int(t) < len(v.end) && v.end[t] }

// Tokenize turns text into tokens; invalid UTF-8 becomes U+FFFD first. With
// special, the text of a control token becomes that token.
func (v *Vocab) Tokenize(text string, special bool) []engine.Token {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if text == "" {
		return nil
	}
	out := make([]engine.Token, 0, len(text)+1)
	if v.prefix {
		out = append(out, v.ofByte[' '])
	}
	for len(text) > 0 {
		if m, ok := v.marker(text); ok && special {
			out, text = append(out, m.token), text[len(m.text):]
			continue
		}
		if strings.HasPrefix(text, space) {
			out, text = append(out, v.ofByte[' ']), text[len(space):]
			continue
		}
		out, text = append(out, v.ofByte[text[0]]), text[1:]
	}
	return out
}

// marker finds the longest control token that text begins with.
func (v *Vocab) marker(text string) (marker, bool) {
	for _, m := range v.special {
		if strings.HasPrefix(text, m.text) {
			return m, true
		}
	}
	return marker{}, false
}
