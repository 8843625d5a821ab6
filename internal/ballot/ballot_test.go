package ballot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

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
		{"ends at once", Probs, `{"choices":[{"message":{"content":""},"logprobs":null}],"usage":{"completion_tokens":0}}`, 0, ErrUnread},
		{"ends at once, with nothing to tell", Probs, `{"choices":[{"message":{"content":""},"logprobs":{"content":[]}}]}`, 0, ErrUnread},
		{"a text that ends at once", Probs, `{"choices":[{"text":"","logprobs":null}]}`, 0, ErrUnread},
		{"text", Probs, `{"choices":[{"text":"NO","logprobs":{"tokens":["NO"],"top_logprobs":[{"NO":-0.1,"YES":-9}]}}]}`, 0, nil},
		{"samples", Samples, `{"choices":[{"message":{"content":"YES"}},{"message":{"content":" yes"}},{"message":{"content":"NO"}},{"message":{"content":null}},{"message":{"content":"hm"}}]}`, 3, nil},
		{"text samples", Samples, `{"choices":[{"text":"y"},{"text":"y"},{"text":"y"},{"text":"n"},{"text":"y"}]}`, 4, nil},
		{"too few samples", Samples, `{"choices":[{"text":"y"}]}`, 0, ErrNoSamples},
		{"samples of nothing", Samples, `{"choices":[{"text":"?"},{},{},{},{}]}`, 0, ErrUnread},
	} {
		v, _, err := (&Case{Samples: 5}).Count(tt.way, []byte(tt.data))
		if !errors.Is(err, tt.err) || err == nil && (v != verifier.Votes{Yes: tt.yes, Of: 5, Sampled: tt.way == Samples}) {
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
		w.tell("m", w.Of("m"), tt.err, false)
		if got := w.Of("m"); got != tt.want || w.Of("other") != Probs {
			t.Errorf("%d, %v: %d", i, tt.err, got)
		}
	}
	for i := range 3 * mostKnown {
		w.tell(fmt.Sprint(i), Probs, ErrNoProbs, false)
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
		{t.Context(), `{"choices":[{"text":"yes"}]}`, nil, Heard{Votes: &verifier.Votes{Yes: 1, Of: 1, Sampled: true}, Sent: true, Ran: true}},
		{t.Context(), `{}`, nil, Heard{Outcome: Unsupported, Sent: true, Ran: true}},
		{t.Context(), `{}`, nil, Heard{Outcome: Unsupported}},
	} {
		got := w.Ask(tt.ctx, "m", c, func(context.Context, openai.Body) ([]byte, error) { return []byte(tt.says), tt.err })
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%d: %+v, want %+v", i, got, tt.want)
		}
	}
}

// A server that does not answer in time is left alone after three questions, longer
// each time, and is asked as before once it has answered.
func TestSlowServersAreLeftAlone(t *testing.T) {
	now := time.Unix(1e9, 0)
	w := Ways{Patience: time.Millisecond, Now: func() time.Time { return now }}
	c := &Case{Text: true, Request: &openai.Request{}, Samples: 1}
	hangs := func(ctx context.Context, _ openai.Body) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }
	answers := func(context.Context, openai.Body) ([]byte, error) {
		return []byte(`{"choices":[{"logprobs":{"top_logprobs":[{"YES":-0.1}]}}]}`), nil
	}
	for i, tt := range []struct {
		later time.Duration
		send  func(context.Context, openai.Body) ([]byte, error)
		want  Outcome
	}{
		{0, hangs, Timeout}, {0, hangs, Timeout}, {0, answers, ""}, // in a row
		{0, hangs, Timeout}, {0, hangs, Timeout}, {0, hangs, Timeout},
		{0, answers, Slow}, {time.Minute - 1, answers, Slow},
		{1, hangs, Timeout}, {time.Minute, answers, Slow}, {time.Minute, hangs, Timeout}, {4 * time.Minute, answers, ""},
		{0, hangs, Timeout}, {0, hangs, Timeout}, {0, hangs, Timeout}, {time.Minute, answers, ""},
	} {
		now = now.Add(tt.later)
		h := w.Ask(t.Context(), "m", c, tt.send)
		if h.Outcome != tt.want || h.Sent == (tt.want == Slow) {
			t.Errorf("%d: %+v, want %q", i, h, tt.want)
		}
		if w.Unasked("other") != "" {
			t.Error("another model is left alone")
		}
	}
	for range 100 { // each after the pause before
		now = now.Add(mostPause)
		w.tell("m", Probs, context.DeadlineExceeded, true)
	}
	if now = now.Add(mostPause); w.Unasked("m") != "" {
		t.Error("a pause of more than an hour")
	}
	w.tell("m", Probs, context.DeadlineExceeded, true)
	if before := w.by["m"]; before.late < mostLate {
		t.Errorf("%+v", before)
	} else if w.tell("m", Probs, context.DeadlineExceeded, true); w.by["m"] != before {
		t.Error("questions that were on their way make the pause longer")
	}
}

// A table is for votes of its own kind.
func TestTablesOfOtherVotes(t *testing.T) {
	var w Ways
	probs, samples := verifier.New(3), verifier.NewFor(verifier.Votes{Of: 3, Sampled: true})
	if !w.Reads(probs, "m", 3) || w.Reads(probs, "m", 5) || w.Reads(samples, "m", 3) || w.Reads(nil, "m", 3) {
		t.Error("of a server that tells probabilities")
	}
	w.tell("m", Probs, ErrNoProbs, false)
	if w.Reads(probs, "m", 3) || !w.Reads(samples, "m", 3) {
		t.Error("of one that gives samples")
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
