package moe

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/moe/kernel"
)

// Fast reports whether this build and processor have vector kernels. Without
// them the runner computes the same at a quarter of llama.cpp's speed.
func Fast() bool { return kernel.SIMD() }

// Inspect returns how many experts a layer of a model file has, 0 where it is
// dense, without loading the weights. The error wraps engine.ErrModel and says
// what this runner cannot do with the file.
func Inspect(path string) (experts int, err error) {
	h, size, err := open(path)
	if err != nil {
		return 0, modelError(path, err)
	}
	defer h.Close()
	if experts, err = inspect(h, size); err != nil {
		return 0, modelError(path, err)
	}
	return experts, nil
}

func inspect(h io.ReaderAt, size int64) (int, error) {
	head, err := gguf.Read(h, size)
	if err != nil {
		return 0, err
	}
	s, err := readShape(head)
	if err != nil {
		return 0, err
	}
	for _, t := range head.Tensors {
		if t.Type != gguf.F32 && t.Type != gguf.F16 && t.Type != gguf.Q8_0 {
			return 0, fmt.Errorf("tensor %q is of %s: this runner knows F32, F16 and Q8_0", t.Name, t.Type)
		}
	}
	if chatML(head) {
		return s.experts, nil
	}
	sum, err := sumOf(h, size)
	if err != nil {
		return 0, err
	}
	if promptOf(sum) == nil {
		return 0, ErrTemplate
	}
	return s.experts, nil
}

// chatML reports whether chats are laid out as ChatML.
func chatML(f *gguf.File) bool {
	template := f.Text("tokenizer.chat_template")
	return template == "" || strings.Contains(template, "<|im_start|>")
}

// sumOf is the SHA-256 of a file, in hex.
func sumOf(h io.ReaderAt, size int64) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(h, 0, size)); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
