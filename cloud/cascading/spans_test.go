package cascading

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cascade/validate"
	"github.com/weirhq/weir/cloud/gateway/chunk"
	"github.com/weirhq/weir/internal/form"
)

// Only the answer is scored, in a stream as in an answer that comes at once:
// neither reasoning nor, of JSON, keys and punctuation.
func TestOnlyTheAnswerIsScored(t *testing.T) {
	type tok struct {
		member, text string
		prob         string
	}
	object, err := validate.ParseSchema([]byte(`{"type":"object"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		json    bool
		toks    []tok
		message string
		answer  int
		sum     float64
	}{
		{"plain", false, []tok{{"content", "a", "-0.5"}, {"content", "b", "-0.25"}}, `"content":"ab"`, 2, -.75},
		{"inline reasoning", false, []tok{{"content", "<think>", "-1"}, {"content", "hm", "-7"}, {"content", "</think>", "-1"}, {"content", "b", "-0.25"}}, `"content":"<think>hm</think>b"`, 1, -.25},
		{"reasoning taken out", false, []tok{{"reasoning", "hm", "-7"}, {"reasoning", " so", "null"}, {"content", "b", "-0.25"}}, `"reasoning":"hm so","content":"b"`, 1, -.25},
		{"other servers'", false, []tok{{"reasoning_content", "hm", "-7"}, {"content", "b", "-0.25"}}, `"reasoning_content":"hm","content":"b"`, 1, -.25},
		{"JSON", true, []tok{{"content", `{"`, "-3"}, {"content", "key", "-2"}, {"content", `":`, "-1"}, {"content", "42", "-0.25"}, {"content", "}", "-1"}}, `"content":"{\"key\":42}"`, 1, -.25},
		{"tool calls", false, []tok{{"content", "so", "-4"}, {"tool_calls", `{"`, "-3"}, {"tool_calls", "key", "-2"}, {"tool_calls", `":`, "-1"}, {"tool_calls", "42", "-0.25"}, {"tool_calls", "}", "-1"}}, `"content":"so","tool_calls":[{}]`, 1, -.25},
	} {
		var asked form.Form
		if tt.json {
			asked.Rules.Schema = object
		}
		e := entry(t, policy.Settings{})
		streamed, whole := e.Open(0).Draft(0, Form{Stream: true, Form: asked}), e.Open(0).Draft(0, Form{Form: asked})
		var tokens []string
		for _, k := range tt.toks {
			val := fmt.Sprintf("%q", k.text)
			token := fmt.Sprintf(`{"token":%s,"logprob":%s}`, val, k.prob)
			tokens = append(tokens, token)
			if k.member == "tool_calls" {
				val = `[{"index":0}]`
			}
			c := chunk.Read(fmt.Appendf(nil, `{"choices":[{"delta":{%q:%s},"logprobs":{"content":[%s]}}]}`, k.member, val, token))
			if out := streamed.Event(&c, func() Ask { return Ask{Fingerprint: right} }, time.Unix(0, 0)); out != (stream.Output{}) {
				t.Fatalf("%s: %+v", tt.name, out)
			}
		}
		finish(whole, read(t, fmt.Appendf(nil, `{"choices":[{"message":{%s},"logprobs":{"content":[%s]}}]}`, tt.message, strings.Join(tokens, ","))), Ask{Fingerprint: right})
		for how, d := range map[string]*Draft{"streamed": streamed, "whole": whole} {
			s := d.acc.Signals()
			if s.Tokens != tt.answer || s.SumLogProb != tt.sum || !s.Usable || s.Spans.Plain() != (tt.answer == len(tt.toks)) || s.Spans[cascade.SpanAnswer] != tt.answer {
				t.Errorf("%s, %s: %+v", tt.name, how, s)
			}
		}
	}
}

// Whatever a server streams, what it says is bounded by what it sent.
func FuzzSaid(f *testing.F) {
	f.Add([]byte(`{"choices":[{"delta":{"content":"a","tool_calls":[{"index":1,"function":{"name":"f","arguments":"{}"}}]}}]}`))
	f.Add([]byte(`{"choices":[{"delta":{"tool_calls":[{"index":-1},{"index":1000000000}]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if said := Said([][]byte{data, data}); len(said.Calls) > maxCalls {
			t.Fatalf("%d calls", len(said.Calls))
		}
	})
}
