package moe_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/gguf/random"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/experts/plan"
)

func TestAnswers(t *testing.T) {
	cache := t.TempDir()
	for _, o := range []moe.Options{
		{Name: "hub-edge"}, {Name: "hub-cloud"},
		{Name: "hub-cloud", Path: converted(t, "hub-cloud", gguf.F16)},
		{Name: "hub-edge", Path: converted(t, "hub-edge", gguf.Q8_0)},
	} {
		path := o.Path
		o.CacheDir, o.MaxSeqs = cache, 1
		r := open(t, o)
		prompt := promptOf(t, open(t, moe.Options{Name: "hub-edge", CacheDir: cache, MaxSeqs: 1}), "Turn on the kitchen light.")
		if got := answer(t, r, prompt); got != `{"do":"light.on","room":"kitchen"}` {
			t.Errorf("%s %s: answer %q", o.Name, filepath.Base(path), got)
		}
	}
}

// randomFile writes a small model of random weights.
func randomFile(t testing.TB, o random.Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "random.gguf")
	if o.Params == 0 {
		o.Params = 1e6
	}
	o.Context, o.Seed = 512, 3
	if _, err := random.WriteFile(path, o); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestGroupedHeads compares with llama.cpp on random weights, whose heads share
// keys, as the bundled models' do not.
func TestGroupedHeads(t *testing.T) {
	for _, arch := range []string{"llama", "qwen3moe"} {
		path := randomFile(t, random.Options{Arch: arch, Type: gguf.F32, Params: 12e6})
		own, other := open(t, moe.Options{Path: path, MaxSeqs: 1}), openReference(t, path)
		if info := own.Info(); arch == "llama" && info.KVBytesPerToken != 8*info.Layers*3*64 {
			t.Errorf("%d bytes of KV per token: not 3 heads, which 6 share", info.KVBytesPerToken)
		}
		tokens, err := own.Tokenize("some words that mean nothing to it", false)
		if err != nil {
			t.Fatal(err)
		}
		if d := relative(enginetest.Last(t, own, 0, 0, tokens), other.last(t, 0, tokens, own.Info().Vocab)); d > 1e-3 {
			t.Errorf("%s: logits differ by %.2e of the greatest", arch, d)
		}
	}
}

// TestTokensEqualLlama compares text handling with llama.cpp's.
func TestTokensEqualLlama(t *testing.T) {
	const template = "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}" +
		"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
	path := randomFile(t, random.Options{Arch: "qwen3moe", Type: gguf.F16, ChatTemplate: template})
	own, other := open(t, moe.Options{Path: path, MaxSeqs: 1}), llamatest.Load(t, llama.Options{Path: path, MaxSeqs: 1})
	for _, text := range []string{"", " a  b ", "日本語", "</s><|im_end|>x", "▁", "a\xff", "<s>", "\x00"} {
		for _, special := range []bool{false, true} {
			a, errA := own.Tokenize(text, special)
			b, errB := other.Tokenize(text, special)
			if !slices.Equal(a, b) || errA != nil || errB != nil {
				t.Errorf("%q, %v: %v, want %v", text, special, a, b)
			}
		}
	}
	chat := []engine.Message{{Role: "system", Content: "be brief"}, {Role: "user", Content: "hi <|im_end|> there"}, {Role: "assistant", Content: "Hel"}}
	for _, c := range []struct {
		n    int
		cont bool
	}{{1, false}, {2, false}, {3, false}, {3, true}} {
		a, errA := own.ChatTokens(chat[:c.n], c.cont)
		b, errB := other.ChatTokens(chat[:c.n], c.cont)
		if !slices.Equal(a, b) || errA != nil || errB != nil {
			t.Errorf("chat of %d, %v: %v, want %v", c.n, c.cont, a, b)
		}
	}
	for tok := range engine.Token(own.Info().Vocab) {
		if string(own.Piece(nil, tok)) != string(other.Piece(nil, tok)) || own.IsEnd(tok) != other.IsEnd(tok) {
			t.Errorf("token %d is %q, %v; want %q, %v", tok, own.Piece(nil, tok), own.IsEnd(tok), other.Piece(nil, tok), other.IsEnd(tok))
		}
	}
	for _, bad := range [][]engine.Message{nil, {{Role: "pirate", Content: "arr"}}} {
		if _, err := own.ChatTokens(bad, false); err == nil {
			t.Error("bad chat: no error")
		}
	}
	unknown := open(t, moe.Options{Path: randomFile(t, random.Options{Arch: "llama", Type: gguf.F16, ChatTemplate: "{{ other }}"}), MaxSeqs: 1})
	if _, err := unknown.ChatTokens(chat, false); !errors.Is(err, moe.ErrTemplate) {
		t.Errorf("unknown template: %v", err)
	}
}

// changed writes a random model's file with other metadata or tensors.
func changed(t testing.TB, arch string, change func(f *gguf.File, tensors []gguf.Content) []gguf.Content) []byte {
	t.Helper()
	data, err := os.ReadFile(randomFile(t, random.Options{Arch: arch, Type: gguf.F16}))
	if err != nil {
		t.Fatal(err)
	}
	src := bytes.NewReader(data)
	f, err := gguf.Read(src, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var tensors []gguf.Content
	for _, tensor := range f.Tensors {
		tensors = append(tensors, gguf.Content{Tensor: tensor, Data: func(w io.Writer) error {
			raw, err := f.ReadRaw(src, tensor)
			if err == nil {
				_, err = w.Write(raw)
			}
			return err
		}})
	}
	var out bytes.Buffer
	if err := gguf.Write(&out, f.Meta, change(f, tensors)); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// meta sets a metadata entry.
func meta(key string, value any) func(*gguf.File, []gguf.Content) []gguf.Content {
	return func(f *gguf.File, tensors []gguf.Content) []gguf.Content {
		f.Meta = slices.DeleteFunc(f.Meta, func(e gguf.Entry) bool { return e.Key == key })
		f.Meta = append(f.Meta, gguf.Entry{Key: key, Value: value})
		return tensors
	}
}

func TestLoadRefusesFiles(t *testing.T) {
	tensors := func(change func([]gguf.Content) []gguf.Content) func(*gguf.File, []gguf.Content) []gguf.Content {
		return func(_ *gguf.File, c []gguf.Content) []gguf.Content { return change(c) }
	}
	for name, change := range map[string]func(*gguf.File, []gguf.Content) []gguf.Content{
		"architecture":   meta("general.architecture", "bert"),
		"no layers":      meta("qwen3moe.block_count", uint32(0)),
		"more layers":    meta("qwen3moe.block_count", uint32(400)),
		"fewer layers":   meta("qwen3moe.block_count", uint32(1)),
		"huge width":     meta("qwen3moe.embedding_length", uint32(1<<30)),
		"heads":          meta("qwen3moe.attention.head_count", uint32(0)),
		"odd heads":      meta("qwen3moe.attention.head_count_kv", uint32(3)),
		"too many used":  meta("qwen3moe.expert_used_count", uint32(17)),
		"none used":      meta("qwen3moe.expert_used_count", uint32(0)),
		"more experts":   meta("qwen3moe.expert_count", uint32(32)),
		"scaled rotary":  meta("qwen3moe.rope.scaling.type", "yarn"),
		"partial rotary": meta("qwen3moe.rope.dimension_count", uint32(32)),
		"norm epsilon":   meta("qwen3moe.attention.layer_norm_rms_epsilon", float32(0)),
		"vocabulary":     meta("tokenizer.ggml.model", "gpt2"),
		"ends":           meta("tokenizer.ggml.eos_token_id", uint32(1<<20)),
		"missing tensor": tensors(func(c []gguf.Content) []gguf.Content { return c[:len(c)-1] }),
		"unknown tensor": tensors(func(c []gguf.Content) []gguf.Content {
			extra := c[2]
			extra.Name = "blk.0.attn_q.bias"
			return append(c, extra)
		}),
	} {
		if err := moe.Read(changed(t, "qwen3moe", change)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := moe.Read(changed(t, "qwen3moe", meta("general.name", "same"))); err != nil {
		t.Errorf("unchanged: %v", err)
	}
}

func TestLoadRefusesOptions(t *testing.T) {
	cache := t.TempDir()
	if _, err := moe.Load(moe.Options{Name: "none", CacheDir: cache}); !errors.Is(err, models.ErrUnknown) || !errors.Is(err, engine.ErrModel) {
		t.Errorf("unknown name: %v", err)
	}
	if _, err := moe.Load(moe.Options{Path: filepath.Join(cache, "absent.gguf")}); !errors.Is(err, engine.ErrModel) {
		t.Errorf("absent file: %v", err)
	}
	text := filepath.Join(cache, "text.gguf")
	if err := os.WriteFile(text, []byte(strings.Repeat("no model ", 100)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := moe.Load(moe.Options{Path: text}); !errors.Is(err, engine.ErrModel) {
		t.Errorf("text file: %v", err)
	}
	for name, o := range map[string]moe.Options{
		"threads":    {Threads: -1},
		"sequences":  {MaxSeqs: 1000},
		"KV":         {Context: 512, KVTokens: 100},
		"few slots":  {Shards: 2, Slots: 2},
		"many slots": {Shards: 2, Slots: 17},
		"gate":       {Gate: []gate.Params{{EpsHigh: 2, Tau: 1, Pool: 2}}},
		"gate rows":  {Gate: make([]gate.Params, 4)},
		"placement":  {Placement: &plan.Placement{Experts: 4}},
	} {
		o.Name, o.CacheDir = "hub-cloud", cache
		if r, err := moe.Load(o); err == nil {
			t.Errorf("%s: no error", name)
			_ = r.Close()
		}
	}
}

func TestDenseHasNoExperts(t *testing.T) {
	r := open(t, moe.Options{Name: "hub-edge", MaxSeqs: 1})
	if s := r.Experts(); s.Experts != 0 || s.Layers != 4 || len(s.Shards) != 0 {
		t.Errorf("%+v", s)
	}
	if _, err := r.Rebalance(t.Context()); !errors.Is(err, moe.ErrFixed) {
		t.Errorf("rebalance: %v", err)
	}
	if err := r.Place(t.Context(), r.Placement()); !errors.Is(err, moe.ErrFixed) {
		t.Errorf("place: %v", err)
	}
	if err := r.Lose(0); !errors.Is(err, moe.ErrFixed) {
		t.Errorf("lose: %v", err)
	}
	if _, err := r.TakeWindow("decode"); !errors.Is(err, moe.ErrFixed) {
		t.Errorf("window: %v", err)
	}
}

// FuzzRead changes bytes of a model's head. It must not crash or take much
// memory, whatever they say.
func FuzzRead(f *testing.F) {
	data := changed(f, "qwen3moe", meta("general.name", "fuzz"))
	head := min(len(data), 16<<10)
	f.Add(uint16(0), []byte("GGUF"))
	f.Add(uint16(200), []byte{0xff, 0xff, 0xff, 0x7f})
	f.Add(uint16(900), []byte{0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, at uint16, bytes []byte) {
		bad := slices.Clone(data)
		copy(bad[int(at)%head:head], bytes)
		_ = moe.Read(bad)
	})
}
