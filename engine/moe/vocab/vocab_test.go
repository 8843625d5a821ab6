package vocab_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/moe/vocab"
	"pgregory.net/rapid"
)

// bytesFile is a file head with a vocabulary like the bundled models'.
func bytesFile(change func(tokens []string, kinds []int32)) *gguf.File {
	tokens, kinds := []string{"<unk>", "<s>", "</s>"}, []int32{2, 3, 3}
	for b := range 256 {
		const digits = "0123456789ABCDEF"
		tokens, kinds = append(tokens, "<0x"+string([]byte{digits[b>>4], digits[b&15]})+">"), append(kinds, 6)
	}
	tokens[3+' '], kinds[3+' '] = "\u2581", 1
	tokens, kinds = append(tokens, "<|im_start|>", "<|im_end|>"), append(kinds, 3, 3)
	if change != nil {
		change(tokens, kinds)
	}
	return &gguf.File{Meta: []gguf.Entry{
		{Key: "tokenizer.ggml.model", Value: "llama"}, {Key: "tokenizer.ggml.tokens", Value: tokens},
		{Key: "tokenizer.ggml.token_type", Value: kinds}, {Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)}, {Key: "tokenizer.ggml.add_space_prefix", Value: false},
	}}
}

func TestTokenize(t *testing.T) {
	v, err := vocab.Read(bytesFile(nil))
	if err != nil {
		t.Fatal(err)
	}
	byteTokens := func(s string) (out []engine.Token) {
		for _, b := range []byte(s) {
			out = append(out, 3+engine.Token(b))
		}
		return out
	}
	for _, c := range []struct {
		text    string
		special bool
		want    []engine.Token
	}{
		{"", false, nil},
		{"a b", false, byteTokens("a b")},
		{"▁x", false, byteTokens(" x")},
		{"</s>", false, byteTokens("</s>")},
		{"</s>", true, []engine.Token{2}},
		{"a<|im_start|><s>é", true, slices.Concat(byteTokens("a"), []engine.Token{259, 1}, byteTokens("é"))},
		{"\xff", false, byteTokens("\uFFFD")},
	} {
		if got := v.Tokenize(c.text, c.special); !slices.Equal(got, c.want) {
			t.Errorf("%q, %v: %v, want %v", c.text, c.special, got, c.want)
		}
	}
	if v.BOS != 1 || v.EOS != 2 || !v.IsEnd(2) || !v.IsEnd(260) || v.IsEnd(259) || v.IsEnd(-1) || v.Len() != 261 {
		t.Error("ends of a generation")
	}
}

func TestRoundTrip(t *testing.T) {
	v, err := vocab.Read(bytesFile(nil))
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.ReplaceAll(strings.ToValidUTF8(rapid.String().Draw(t, "text"), "?"), "\u2581", "")
		var out []byte
		for _, tok := range v.Tokenize(text, false) {
			out = v.Piece(out, tok)
		}
		if string(out) != text {
			t.Fatalf("%q came back as %q", text, out)
		}
	})
}

func TestReadRefuses(t *testing.T) {
	for name, change := range map[string]func([]string, []int32){
		"merged piece": func(tokens []string, kinds []int32) { tokens[70], kinds[70] = "the", 1 },
		"byte twice":   func(tokens []string, _ []int32) { tokens[70] = tokens[71] },
		"no byte":      func(tokens []string, kinds []int32) { kinds[70] = 3 },
		"odd byte":     func(tokens []string, _ []int32) { tokens[70] = "<0xZZ>" },
	} {
		if _, err := vocab.Read(bytesFile(change)); !errors.Is(err, vocab.ErrKind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := vocab.Read(&gguf.File{}); !errors.Is(err, vocab.ErrKind) {
		t.Errorf("no vocabulary: %v", err)
	}
}
