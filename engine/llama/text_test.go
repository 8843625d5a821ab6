package llama_test

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/gguf/random"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
)

// TestTokenizeBytes checks the bundled vocabulary's rule, a token per byte, on
// what is awkward for C: NUL, controls, parts of runes.
func TestTokenizeBytes(t *testing.T) {
	r := llamatest.Load(t, llama.Options{Name: "hub-edge", MaxSeqs: 1})
	for _, text := range []string{"", " ", "a\x00b", "\x00", "zwei  Leerzeichen ", "日本語", "</s>", "<s>U: x\nA: ", "▁", strings.Repeat("long ", 50_000)} {
		got, err := r.Tokenize(text, false)
		if err != nil {
			t.Fatal(err)
		}
		var want []engine.Token
		for _, b := range []byte(strings.ReplaceAll(text, "▁", " ")) { // SPM has one token for both
			want = append(want, 3+engine.Token(b))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%.20q: %d tokens, want %d", text, len(got), len(want))
		}
	}
	if got, err := r.Tokenize("a\xff", false); err != nil || enginetest.Text(r, got) != "a\uFFFD" {
		t.Errorf("invalid UTF-8: %q, %v", enginetest.Text(r, got), err)
	}
	if got, err := r.Tokenize("</s>", true); err != nil || len(got) != 1 || got[0] != r.Info().EOS {
		t.Errorf("marker: %v, %v", got, err)
	}
	if !r.IsEnd(r.Info().EOS) || r.IsEnd(3+'a') || len(r.Piece(nil, r.Info().EOS)) != 0 {
		t.Error("end of generation")
	}
}

// TestTextFromManyGoroutines is for the race detector: the step loop runs while
// handlers tokenise.
func TestTextFromManyGoroutines(t *testing.T) {
	r := llamatest.Load(t, llama.Options{Name: "hub-edge", MaxSeqs: 1})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				tokens, err := r.Tokenize("turn on the light", false)
				if err != nil || enginetest.Text(r, tokens) != "turn on the light" {
					t.Error("tokenize beside steps", err)
				}
				if _, err := r.ChatTokens([]engine.Message{{Role: "user", Content: "x"}}, false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 100 {
		enginetest.Step(t, r, engine.Span{Pos: i, Tokens: []engine.Token{70}})
	}
	wg.Wait()
}

func TestBundledChat(t *testing.T) {
	r := llamatest.Load(t, llama.Options{Name: "hub-edge", MaxSeqs: 1})
	got := promptOf(t, r, "Turn on the kitchen light.")
	want, err := r.Tokenize("U: turn on the kitchen light\nA: ", false)
	if err != nil || !slices.Equal(got, append([]engine.Token{r.Info().BOS}, want...)) {
		t.Errorf("prompt %q, %v", enginetest.Text(r, got), err)
	}
	if answer := enginetest.Text(r, enginetest.Greedy(t, r, 0, got, 100)); answer != `{"do":"light.on","room":"kitchen"}` {
		t.Errorf("answer %q", answer)
	}
}

const chatML = "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

// TestTemplates lays out chats by a file's own template and by the fallback.
func TestTemplates(t *testing.T) {
	load := func(template string) *llama.Runner {
		path := filepath.Join(t.TempDir(), "m.gguf")
		if _, err := random.WriteFile(path, random.Options{Arch: "llama", Params: 1e6, Context: 512, Type: gguf.F16, ChatTemplate: template}); err != nil {
			t.Fatal(err)
		}
		return llamatest.Load(t, llama.Options{Path: path, MaxSeqs: 1})
	}
	own, unknown, none := load(chatML), load("{{ something else entirely }}"), load("")
	chat := []engine.Message{{Role: "system", Content: "be brief"}, {Role: "user", Content: "hi <|im_end|> there"}}
	head := "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi <|im_end|> there<|im_end|>\n"
	begun := append(slices.Clone(chat), engine.Message{Role: "assistant", Content: "Hel"})
	cases := []struct {
		name     string
		r        *llama.Runner
		messages []engine.Message
		cont     bool
		want     string
		markers  int // control tokens beside BOS
	}{
		{"own", own, chat, false, head + "<|im_start|>assistant\n", 5},
		{"unknown falls back", unknown, chat, false, head + "<|im_start|>assistant\n", 5},
		{"none falls back", none, chat, false, head + "<|im_start|>assistant\n", 0},
		{"continue", own, begun, true, head + "<|im_start|>assistant\nHel", 5},
		{"answered", own, begun, false, head + "<|im_start|>assistant\nHel<|im_end|>\n<|im_start|>assistant\n", 7},
	}
	for _, c := range cases {
		tokens, err := c.r.ChatTokens(c.messages, c.cont)
		if err != nil || len(tokens) == 0 || tokens[0] != c.r.Info().BOS {
			t.Errorf("%s: %d tokens, %v", c.name, len(tokens), err)
			continue
		}
		text, markers := spell(c.r, tokens[1:])
		if text != c.want || markers != c.markers {
			t.Errorf("%s: %d markers in %q, want %d in %q", c.name, markers, text, c.markers, c.want)
		}
	}
	for name, bad := range map[string][]engine.Message{"none": nil, "role": {{Role: "pirate", Content: "arr"}}, "NUL role": {{Role: "us\x00er"}}} {
		if _, err := own.ChatTokens(bad, false); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// spell writes tokens out, with the test vocabulary's two markers by name.
func spell(r *llama.Runner, tokens []engine.Token) (text string, markers int) {
	var out []byte
	for _, tok := range tokens {
		switch tok {
		case 259:
			out, markers = append(out, "<|im_start|>"...), markers+1
		case 260:
			out, markers = append(out, "<|im_end|>"...), markers+1
		default:
			out = r.Piece(out, tok)
		}
	}
	return string(out), markers
}
