package ballot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/internal/openai"
)

func chat(t *testing.T, body string) *Case {
	t.Helper()
	b, err := openai.ParseBody([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	req, err := openai.ParseChat(b)
	if err != nil {
		t.Fatal(err)
	}
	return &Case{Model: "m", Body: b, Request: req, Answer: "four", Samples: 5}
}

// The question keeps the conversation and nothing else of the request.
func TestAsk(t *testing.T) {
	c := chat(t, `{"model":"auto","messages":[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"2+2"}]}],"stream":true,"seed":1,"stop":["Y"],"max_completion_tokens":9}`)
	got := string(c.Ask(Probs).JSON())
	for _, want := range []string{`"max_tokens":1`, `"logprobs":true`, `"top_logprobs":20`, `"temperature":0`, `{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"text","text":"2+2"}]},{"role":"assistant","content":"four"},{"role":"user","content":"Is the`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
	for _, no := range []string{"stream", "seed", "stop", "completion_tokens", `"n"`} {
		if strings.Contains(got, no) {
			t.Errorf("%s is in %s", no, got)
		}
	}
	if got := string(c.Ask(Samples).JSON()); !strings.Contains(got, `"n":5`) || !strings.Contains(got, `"temperature":1`) || strings.Contains(got, "logprobs") {
		t.Errorf("samples: %s", got)
	}
	c = chat(t, `{"model":"auto","messages":[{"role":"user","content":"2+2"},{"role":"assistant","content":"it is "}],"continue_final_message":true,"add_generation_prompt":false}`)
	if got := string(c.Ask(Probs).JSON()); !strings.Contains(got, `"it is four"`) || strings.Count(got, "assistant") != 1 {
		t.Errorf("begun: %s", got)
	}
	text := Case{Model: "m", Text: true, Request: &openai.Request{Prompt: "2+2="}, Answer: "4", Samples: 1}
	if got := string(text.Ask(Probs).JSON()); !strings.Contains(got, `"prompt":"2+2=4\n\nIs the`) || !strings.Contains(got, `"logprobs":5`) {
		t.Errorf("text: %s", got)
	}
}

func TestCount(t *testing.T) {
	top := func(tokens string) string {
		return `{"choices":[{"message":{"content":"x"},"logprobs":{"content":[{"token":"x","logprob":-1,"top_logprobs":[` + tokens + `]}]}}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}`
	}
	for _, tt := range []struct {
		name string
		way  Way
		data string
		yes  int
		err  error
	}{
		{"sure", Probs, top(`{"token":"YES","logprob":-0.01},{"token":"NO","logprob":-5}`), 5, nil},
		{"all spellings", Probs, top(`{"token":" yes","logprob":-1.6},{"token":"Yes.","logprob":-1.6},{"token":"No","logprob":-0.9},{"token":"NOT","logprob":-0.1}`), 2, nil},
		{"letters", Probs, top(`{"token":"y","logprob":-3},{"token":"N","logprob":-0.1},{"token":"</s>","logprob":-9}`), 0, nil},
		{"positive log-probabilities", Probs, top(`{"token":"Y","logprob":900},{"token":"N","logprob":null}`), 5, nil},
		{"neither", Probs, top(`{"token":"maybe","logprob":-0.1}`), 0, ErrUnread},
		{"none told", Probs, top(``), 0, ErrNoProbs},
		{"no logprobs", Probs, `{"choices":[{"message":{"content":"YES"}}]}`, 0, ErrNoProbs},
		{"no choices", Probs, `{}`, 0, ErrNoProbs},
		{"text", Probs, `{"choices":[{"text":"NO","logprobs":{"tokens":["NO"],"top_logprobs":[{"NO":-0.1,"YES":-9}]}}]}`, 0, nil},
		{"samples", Samples, `{"choices":[{"message":{"content":"YES"}},{"message":{"content":" yes"}},{"message":{"content":"NO"}},{"message":{"content":null}},{"message":{"content":"hm"}}]}`, 3, nil},
		{"text samples", Samples, `{"choices":[{"text":"y"},{"text":"y"},{"text":"y"},{"text":"n"},{"text":"y"}]}`, 4, nil},
		{"too few samples", Samples, `{"choices":[{"text":"y"}]}`, 0, ErrNoSamples},
		{"samples of nothing", Samples, `{"choices":[{"text":"?"},{},{},{},{}]}`, 0, ErrUnread},
	} {
		v, _, err := (&Case{Samples: 5}).Count(tt.way, []byte(tt.data))
		if !errors.Is(err, tt.err) || err == nil && (v != verifier.Votes{Yes: tt.yes, Of: 5}) {
			t.Errorf("%s: %+v, %v", tt.name, v, err)
		}
	}
	if _, used, _ := (&Case{Samples: 5}).Count(Probs, []byte(top(``))); used.PromptTokens != 9 {
		t.Errorf("used %+v", used)
	}
	if _, _, err := (&Case{Samples: 5}).Count(Probs, []byte(`<html>`)); err == nil {
		t.Error("HTML is counted")
	}
}

// A server is asked the next way once it has shown that it cannot be asked so.
func TestWays(t *testing.T) {
	var w Ways
	for i, tt := range []struct {
		err  error
		want Way
	}{
		{nil, Probs}, {ErrUnread, Probs}, {openai.BadRequest("messages", "x", "no"), Probs},
		{openai.BadRequest("top_logprobs", "x", "no"), Samples}, {ErrUnread, Samples}, {fmt.Errorf("so: %w", ErrNoSamples), Nowise}, {nil, Nowise},
	} {
		w.tell("m", w.Of("m"), tt.err)
		if got := w.Of("m"); got != tt.want || w.Of("other") != Probs {
			t.Errorf("%d, %v: %d", i, tt.err, got)
		}
	}
	for i := range 3 * mostKnown {
		w.tell(fmt.Sprint(i), Probs, ErrNoProbs)
	}
	if len(w.by) > mostKnown {
		t.Errorf("%d are remembered", len(w.by))
	}
}

// Asking tells votes, or why there are none; what a server cannot do it is not
// asked again.
func TestAskOnce(t *testing.T) {
	var w Ways
	c := &Case{Text: true, Request: &openai.Request{}, Samples: 1}
	gone, leave := context.WithCancel(t.Context())
	leave()
	for i, tt := range []struct {
		ctx  context.Context
		says string
		err  error
		want Heard
	}{
		{t.Context(), `{"choices":[{"logprobs":{"top_logprobs":[{"YES":-0.1}]}}],"usage":{"prompt_tokens":3}}`, nil, Heard{Votes: &verifier.Votes{Yes: 1, Of: 1}, Sent: true, Ran: true, Used: openai.Usage{PromptTokens: 3}}},
		{t.Context(), `{"choices":[{"logprobs":{"top_logprobs":[{"x":-0.1}]}}]}`, nil, Heard{Outcome: Unread, Sent: true, Ran: true}},
		{t.Context(), "", errors.New("down"), Heard{Outcome: Failed, Sent: true}},
		{gone, "", context.Canceled, Heard{Outcome: Failed, Sent: true}},
		{t.Context(), `{}`, nil, Heard{Outcome: Unsupported, Sent: true, Ran: true}},
		{t.Context(), `{"choices":[{"text":"yes"}]}`, nil, Heard{Votes: &verifier.Votes{Yes: 1, Of: 1}, Sent: true, Ran: true}},
		{t.Context(), `{}`, nil, Heard{Outcome: Unsupported, Sent: true, Ran: true}},
		{t.Context(), `{}`, nil, Heard{Outcome: Unsupported}},
	} {
		got := w.Ask(tt.ctx, "m", c, func(context.Context, openai.Body) ([]byte, error) { return []byte(tt.says), tt.err })
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%d: %+v, want %+v", i, got, tt.want)
		}
	}
}

// Whatever a server says, votes are among the samples.
func FuzzCount(f *testing.F) {
	f.Add([]byte(`{"choices":[{"message":{"content":"YES"},"logprobs":{"content":[{"top_logprobs":[{"token":"Y","logprob":-1}]}]}}]}`), false)
	f.Add([]byte(`{"choices":[{"text":"no","logprobs":{"top_logprobs":[{"n":-1e308,"yes":1e308}]}}],"usage":{}}`), false)
	f.Add([]byte(`{"choices":[{"text":"no"},{"text":null},{}]}`), true)
	f.Fuzz(func(t *testing.T, data []byte, samples bool) {
		way := Probs
		if samples {
			way = Samples
		}
		v, _, err := (&Case{Samples: 3}).Count(way, data)
		if err == nil && (v.Of != 3 || v.Yes < 0 || v.Yes > 3) {
			t.Fatalf("%+v of %q", v, data)
		}
		if !json.Valid(data) && err == nil {
			t.Fatalf("counted %q", data)
		}
	})
}
