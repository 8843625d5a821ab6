package cascading

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/internal/openai"
)

func calibration() cascade.Calibration {
	return cascade.Calibration{Version: 1, Fingerprint: "fp", Bias: .5, Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}, Threshold: .75, CloudAccuracy: .98}
}

func chat(text string, logprobs ...float64) []byte {
	var tokens []string
	for _, v := range logprobs {
		tokens = append(tokens, fmt.Sprintf(`{"token":"x","logprob":%v}`, v))
	}
	return fmt.Appendf(nil, `{"id":"c","object":"chat.completion","created":7,"model":"small","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop","logprobs":{"content":[%s]}}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5},"x":1}`,
		text, strings.Join(tokens, ","))
}

func read(t *testing.T, data []byte) *Answer {
	t.Helper()
	a, err := Read(data)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestJudge(t *testing.T) {
	e, err := New("small", policy.Settings{}, calibration())
	if err != nil {
		t.Fatal(err)
	}
	right := "fp:llama:1"
	for _, tt := range []struct {
		name     string
		answer   []byte
		ask      Ask
		escalate bool
		reason   cascade.Reason
	}{
		{"sure", chat("a", -.001, -.001), Ask{Fingerprint: right}, false, cascade.ReasonConfident},
		{"doubtful", chat("a", -.001, -2), Ask{Fingerprint: right}, true, cascade.ReasonLowConfidence},
		{"empty", chat(" ", -.001), Ask{Fingerprint: right}, true, cascade.ReasonValidatorFailed},
		{"no signal", chat("a"), Ask{Fingerprint: right}, true, cascade.ReasonSignalUnusable},
		{"another model", chat("a", -.001), Ask{Fingerprint: "gq:llama:1"}, true, cascade.ReasonSignalUnusable},
		{"an engine without a fingerprint", chat("a", -.001), Ask{}, true, cascade.ReasonSignalUnusable},
		{"no time left", chat("a", -2), Ask{Fingerprint: right, Remaining: -1}, false, cascade.ReasonDeadline},
	} {
		if v, _ := e.Judge(read(t, tt.answer), tt.ask, time.Unix(0, 0)); v.Escalate != tt.escalate || v.Reason != tt.reason {
			t.Errorf("%s: %+v", tt.name, v)
		}
	}
}

func TestRateIsHeld(t *testing.T) {
	rate := .3
	e, err := New("small", policy.Settings{Name: "third", Rate: &rate}, calibration())
	if err != nil {
		t.Fatal(err)
	}
	rng, escalated := rand.New(rand.NewPCG(1, 2)), 0
	const n = 4000
	for i := range n {
		a := &Answer{Signals: read(t, chat("a", -3*rng.Float64())).Signals}
		text := "a"
		a.choice.Message.Content = &text
		v, name := e.Judge(a, Ask{Fingerprint: "fp:llama:1"}, time.Unix(0, 0))
		if name != "third" {
			t.Fatal(name)
		}
		if v.Escalate && i >= n/2 {
			escalated++
		}
	}
	if got := float64(escalated) / (n / 2); math.Abs(got-rate) > .02 {
		t.Errorf("share %v, want %v", got, rate)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, spec := range []string{`{"mode":"auto"}`, `{"privacy":"any"}`, `{"budget":{"per_day_nano":1,"right_nano":1}}`,
		`{"risk":{"alpha":0.1,"delta":0.1,"max_rate":1}}`, `{"shadow":0.1}`, `{"hedge":true}`, `{"window":{}}`, `{"handoff":"finish"}`, `{"sticky":true}`, `{"skip_edge":true}`, `{"validate":{"refusals":true}}`} {
		set, err := policy.Parse([]byte(spec))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New("small", set, calibration()); !errors.Is(err, policy.ErrSettings) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	if _, err := New("", policy.Settings{}, calibration()); err == nil {
		t.Error("no small pool")
	}
	if _, err := New("small", policy.Settings{}, cascade.Calibration{}); err == nil {
		t.Error("no calibration")
	}
}

// What a client gets of a kept answer is what it would have got of the server,
// whole or streamed.
func TestForms(t *testing.T) {
	a := read(t, chat("hello you", -.1, -.2))
	for _, probs := range []bool{false, true} {
		raw, err := a.Whole(probs)
		if err != nil {
			t.Fatal(err)
		}
		var w struct {
			X       int
			Choices []struct {
				Message  struct{ Content string }
				Logprobs *struct{ Content []any }
			}
		}
		if err := json.Unmarshal(raw, &w); err != nil || w.X != 1 || w.Choices[0].Message.Content != "hello you" || (w.Choices[0].Logprobs != nil) != probs {
			t.Errorf("%v: %s", err, raw)
		}
		events, err := a.Events(Stream{Logprobs: probs, Usage: probs})
		if err != nil {
			t.Fatal(err)
		}
		text, finish, usage := "", "", 0
		for _, raw := range events {
			var e openai.Response
			var d struct {
				Choices []struct{ Delta struct{ Content string } }
				Usage   *openai.Usage
			}
			if err := errors.Join(json.Unmarshal(raw, &e), json.Unmarshal(raw, &d)); err != nil || e.Object != openai.ObjectChatChunk || e.ID != "c" {
				t.Fatalf("%v: %s", err, raw)
			}
			for i := range d.Choices {
				text += d.Choices[i].Delta.Content
				if f := e.Choices[i].FinishReason; f != nil {
					finish = *f
				}
			}
			if d.Usage != nil {
				usage = d.Usage.TotalTokens
			}
		}
		if text != "hello you" || finish != "stop" || (usage == 5) != probs {
			t.Errorf("streamed %q, %s, %d", text, finish, usage)
		}
	}
	calls := read(t, []byte(`{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`))
	events, err := calls.Events(Stream{})
	if err != nil || calls.Empty() || !strings.Contains(string(events[0]), `"index":0,"type":"function"`) {
		t.Errorf("%v: %s", err, events)
	}
	text := read(t, []byte(`{"choices":[{"text":"hi","finish_reason":"stop","logprobs":{"token_logprobs":[-0.5,null]}}]}`))
	if text.Signals.Usable || text.Signals.Tokens != 1 {
		t.Errorf("%+v", text.Signals)
	}
	if events, err := text.Events(Stream{Text: true}); err != nil || !strings.Contains(string(events[0]), `"text":"hi"`) {
		t.Errorf("%v: %s", err, events)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(chat("a", -.1))
	f.Add([]byte(`{"choices":[{"text":"x","logprobs":{"token_logprobs":[1e308]}}]}`))
	f.Add([]byte(`{"choices":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := Read(data)
		if err != nil {
			return
		}
		if _, err := a.Whole(false); err != nil {
			t.Skip() // choices that are no objects
		}
		_, _ = a.Events(Stream{Usage: true})
	})
}
