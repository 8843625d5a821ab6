package random

import (
	"fmt"

	"github.com/weirhq/weir/engine/gguf"
)

// vocab is the byte-level vocabulary of the bundled models: <unk>, <s>, </s>,
// and byte b as token 3+b.
type vocab struct {
	tokens []string
	kinds  []int32 // llama_token_type: 1 normal, 2 unknown, 3 control, 6 byte
}

func newVocab(chatML bool) vocab {
	v := vocab{tokens: []string{"<unk>", "<s>", "</s>"}, kinds: []int32{2, 3, 3}}
	for b := range 256 {
		if b == ' ' { // the tokenizer writes a space as U+2581; as a byte it would take three tokens
			v.tokens, v.kinds = append(v.tokens, "\u2581"), append(v.kinds, 1)
			continue
		}
		v.tokens, v.kinds = append(v.tokens, fmt.Sprintf("<0x%02X>", b)), append(v.kinds, 6)
	}
	if chatML {
		v.tokens, v.kinds = append(v.tokens, "<|im_start|>", "<|im_end|>"), append(v.kinds, 3, 3)
	}
	return v
}

func (v vocab) meta() []gguf.Entry {
	return []gguf.Entry{
		{Key: "tokenizer.ggml.model", Value: "llama"},
		{Key: "tokenizer.ggml.tokens", Value: v.tokens},
		{Key: "tokenizer.ggml.scores", Value: make([]float32, len(v.tokens))},
		{Key: "tokenizer.ggml.token_type", Value: v.kinds},
		{Key: "tokenizer.ggml.unknown_token_id", Value: uint32(0)},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)},
		{Key: "tokenizer.ggml.add_bos_token", Value: true},
		{Key: "tokenizer.ggml.add_eos_token", Value: false},
		{Key: "tokenizer.ggml.add_space_prefix", Value: false},
	}
}
