package api

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/internal/openai"
)

// FuzzString: what is written by hand reads back as encoding/json reads it.
func FuzzString(f *testing.F) {
	for _, s := range []string{"", "plain", `"\` + "\x00\x1f\n\r\t\b\x7f", "é€😀", "\xff\xc3", "a\xe2\x82", "\u2028</script>"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, s []byte) {
		out := appendString([]byte("x"), s)[1:]
		var got string
		if err := json.Unmarshal(out, &got); err != nil || !utf8.Valid(out) {
			t.Fatalf("%q: %v: %q", s, err, out)
		}
		// encoding/json replaces each invalid byte too.
		std, _ := json.Marshal(string(s))
		var want string
		_ = json.Unmarshal(std, &want)
		if got != want {
			t.Errorf("%q reads back as %q, want %q", s, got, want)
		}
	})
}

func TestLogprobNumbers(t *testing.T) {
	for x, want := range map[float32]string{0: "0", -0.25: "-0.25", float32(math.Inf(-1)): "-9999", float32(math.NaN()): "-9999"} {
		if got := string(appendLogprob(nil, x)); got != want {
			t.Errorf("%v is written as %s, want %s", x, got, want)
		}
	}
}

func testShape(chat bool) shape {
	return shape{chat: chat, id: "id", model: "m", created: 7, logprobs: true, top: 2, includeUsage: true,
		pieces: loop.NewPieces(runnertest.New(runnertest.Options{}))}
}

func tok(b byte, lp float32) sample.Logprob {
	return sample.Logprob{Token: engine.Token(3 + int(b)), Logprob: lp}
}

// TestChunks reads the handwritten JSON with the types that the rest of Weir
// uses.
func TestChunks(t *testing.T) {
	c := newChunks(testShape(true), true)
	tokens := []sample.Logprob{tok('a', -0.5), {Token: runnertest.EOS, Logprob: -1}}
	top := []sample.Logprob{tok('a', -0.5), tok('"', -2), {Token: runnertest.EOS, Logprob: -1}, tok(0xe2, -3)}
	var r openai.Response
	parse := func(data []byte) openai.Choice {
		t.Helper()
		r = openai.Response{}
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if r.ID != "id" || r.Object != "chat.completion.chunk" || r.Created != 7 || r.Model != "m" {
			t.Errorf("%s", data)
		}
		if len(r.Choices) == 0 {
			return openai.Choice{}
		}
		return r.Choices[0]
	}
	if ch := parse(c.role()); ch.Delta.Role != "assistant" || *ch.Delta.Content != "" || !strings.HasSuffix(string(c.buf), `],"usage":null}`) {
		t.Errorf("role chunk %s", c.buf)
	}
	ch := parse(c.text([]byte("a\n"), tokens, top))
	lp := ch.Logprobs.Content
	if *ch.Delta.Content != "a\n" || ch.FinishReason != nil || len(lp) != 2 || lp[1].Token != "</s>" || len(lp[1].Bytes) != 0 ||
		lp[0].TopLogprobs[1].Token != `"` || lp[1].TopLogprobs[1].Token != "\uFFFD" || lp[1].TopLogprobs[1].Bytes[0] != 0xe2 {
		t.Errorf("text chunk %s", c.buf)
	}
	if ch := parse(c.finish(loop.FinishStop, tokens[1:], top[2:])); *ch.FinishReason != "stop" || ch.Delta.Content != nil || len(ch.Logprobs.Content) != 1 {
		t.Errorf("finish chunk %s", c.buf)
	}
	if parse(c.usage(loop.Result{PromptTokens: 3, CompletionTokens: 2})); len(r.Choices) != 0 || r.Usage.TotalTokens != 5 {
		t.Errorf("usage chunk %s", c.buf)
	}
}

func TestTextCompletionChunks(t *testing.T) {
	c := newChunks(testShape(false), true)
	half := []sample.Logprob{tok(0xe2, -3), tok(0x82, -4)} // look alike in JSON
	var got struct {
		Object  string
		Choices []struct {
			Text     string
			Logprobs openai.TextLogprobs
		}
	}
	for i, want := range []int{0, 2} {
		data := c.text([]byte("ab"), []sample.Logprob{tok('a', -1), tok('b', -2)}, append(half[:2:2], half...))
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		lp := got.Choices[0].Logprobs
		if got.Object != "text_completion" || got.Choices[0].Text != "ab" || lp.TextOffset[0] != want || lp.TextOffset[1] != want+1 ||
			lp.TokenLogprobs[1] != -2 || len(lp.TopLogprobs[0]) != 1 || lp.TopLogprobs[0]["\uFFFD"] != -3 {
			t.Errorf("chunk %d: %s", i, data)
		}
	}
}

func BenchmarkChunk(b *testing.B) {
	s := testShape(true)
	s.logprobs = false
	c := newChunks(s, true)
	text := []byte("hello")
	b.ReportAllocs()
	for b.Loop() {
		c.text(text, nil, nil)
	}
}
