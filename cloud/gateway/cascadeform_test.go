package gateway

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/weirhq/weir/cascade"
)

// callsTool answers with a call of the tool light, sure of it.
func callsTool(arguments string) func(http.ResponseWriter, *http.Request, map[string]any) bool {
	return func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		call := fmt.Sprintf(`"tool_calls":[{"index":0,"id":"1","type":"function","function":{"name":"light","arguments":%q}}]`, arguments)
		probs := fmt.Sprintf(`{"content":[{"token":%q,"logprob":-0.001}]}`, arguments)
		if body["stream"] != true {
			fmt.Fprintf(w, `{"id":"s","object":"chat.completion","created":1,"model":"small","choices":[{"index":0,"message":{"role":"assistant","content":null,%s},"finish_reason":"tool_calls","logprobs":%s}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`, call, probs)
			return true
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, choice := range []string{fmt.Sprintf(`{"index":0,"delta":{%s},"logprobs":%s,"finish_reason":null}`, call, probs), `{"index":0,"delta":{},"finish_reason":"tool_calls"}`} {
			fmt.Fprintf(w, "data: {\"id\":\"s\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"small\",\"choices\":[%s]}\n\n", choice)
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
		return true
	}
}

// The form that a client asks for is hard evidence in a cloud's cascade too: what
// breaks it gives way however sure the small pool was, and nothing of it is shown.
func TestCascadeChecksTheForm(t *testing.T) {
	const (
		object = `,"response_format":{"type":"json_object"}`
		tools  = `,"tools":[{"type":"function","function":{"name":"light","parameters":{"type":"object","required":["on"],"properties":{"on":{"type":"boolean"}}}}}]`
		beyond = `,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"if":{"type":"object"}}}}`
	)
	r, small, _ := cascadeRig(t, nil)
	for _, tt := range []struct {
		name, format string
		says         func(http.ResponseWriter, *http.Request, map[string]any) bool
		model        string
		reason       cascade.Reason
	}{
		{"fits", object, smallSays(`{"a":1}`, -.001), "small", cascade.ReasonConfident},
		{"fits after reasoning", object, smallSays(`<think>so</think>{"a":1}`, -.001), "small", cascade.ReasonConfident},
		{"no JSON", object, smallSays("the hall, I think", -.001), "big", cascade.ReasonValidatorFailed},
		{"beyond what is checked", beyond, smallSays("the hall, I think", -.001), "small", cascade.ReasonConfident},
		{"arguments that fit", tools, callsTool(`{"on":true}`), "small", cascade.ReasonConfident},
		{"arguments of another kind", tools, callsTool(`{"on":3}`), "big", cascade.ReasonValidatorFailed},
		{"broken arguments", tools, callsTool(`{"on":tr`), "big", cascade.ReasonValidatorFailed},
		{"text instead of a call", tools, smallSays("which one?", -.001), "small", cascade.ReasonConfident},
	} {
		for _, stream := range []bool{false, true} {
			small.on(tt.says)
			got := r.chat(t, fmt.Sprintf(`{"model":"auto","stream":%v,"messages":[{"role":"user","content":"hi"}]%s}`, stream, tt.format))
			if w := weirAt(t, lastEvent(got)); got.status != 200 || w.Model != tt.model || w.Reason != tt.reason {
				t.Errorf("%s, stream %v: %d %s", tt.name, stream, got.status, got.body)
			}
		}
	}
}
