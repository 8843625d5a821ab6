package chunk

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestRead(t *testing.T) {
	tests := []struct {
		name, data string
		want       Event
	}{
		{"role", `{"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}`, Event{Model: []byte(`"m"`), NullUsage: true}},
		{"token", `{"choices":[{"delta":{"content":"a\"}]"}}]}`, Event{Token: true, Text: []byte(`"a\"}]"`)}},
		{"reasoning", ` { "choices" : [ { "delta" : { "reasoning" : "x" } } ] } `, Event{Token: true, Other: true, Think: true}},
		{"tool call", `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, Event{Token: true, Other: true, Calls: true}},
		{"log-probabilities", `{"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"logprob":-1}]}}]}`, Event{Token: true, Text: []byte(`"a"`), Probs: []byte(`{"content":[{"logprob":-1}]}`)}},
		{"parts", `{"choices":[{"delta":{"content":[{"type":"text","text":"a"}]}}]}`, Event{Token: true, Other: true}},
		{"text", `{"choices":[{"text":"x","finish_reason":"length"}]}`, Event{Token: true, Text: []byte(`"x"`), Finish: []byte(`"length"`)}},
		{"usage", `{"choices":[],"usage":{"prompt_tokens":1}}`, Event{Empty: true, Usage: []byte(`{"prompt_tokens":1}`)}},
		{"error", `{"error":{"message":"x"}}`, Event{Empty: true, Fault: []byte(`{"message":"x"}`)}},
		{"inner", `{"choices":[],"kv_transfer_params":{"a":1}}`, Event{Empty: true, Inner: true}},
		{"migrated", `{"id":"c","weir_migrated":{"a":1}}`, Event{Empty: true, ID: []byte(`"c"`), Moved: []byte(`{"a":1}`)}},
		{"token ids", `{"choices":[{"delta":{"content":"a"},"token_ids":[1,2]}]}`, Event{Token: true, Text: []byte(`"a"`), IDs: []byte(`[1,2]`)}},
		{"python", `{'error': 'x'}`, Event{Empty: true, Bad: true}},
		{"cut", `{"choices":[{"delta":`, Event{Empty: true, Bad: true}},
		{"trailing", `{} x`, Event{Empty: true, Bad: true}},
		{"list", `[]`, Event{Empty: true, Bad: true}},
		{"nothing", ``, Event{Empty: true, Bad: true}},
	}
	for _, tt := range tests {
		if got := Read([]byte(tt.data)); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestAppend(t *testing.T) {
	tests := []struct {
		data, without, weir string
	}{
		{`{"a":1,"usage":null,"kv_transfer_params":{"x":"}"},"b":[2]}`, `{"a":1,"b":[2]}`, `{"a":1,"b":[2],"weir":{}}`},
		{`{"usage":{}}`, `{}`, `{"weir":{}}`},
		{` { "a" : "\"" } `, `{"a":"\""}`, `{"a":"\"","weir":{}}`},
	}
	for _, tt := range tests {
		got := (&Rewrite{HideUsage: true}).Append(nil, []byte(tt.data))
		if string(got) != tt.without {
			t.Errorf("Rewrite(%s) = %s, want %s", tt.data, got, tt.without)
		}
		if got = AppendWeir(nil, got, []byte(`{}`)); string(got) != tt.weir {
			t.Errorf("AppendWeir(%s) = %s, want %s", tt.without, got, tt.weir)
		}
	}
}

// Log-probabilities that only the gateway asked for stay inside.
func TestHideProbs(t *testing.T) {
	got := (&Rewrite{HideProbs: true}).Append(nil, []byte(`{"id":"c","choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[]},"token_ids":[1]}],"usage":null}`))
	if want := `{"id":"c","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"token_ids":[1]}],"usage":null}`; string(got) != want {
		t.Errorf("%s", got)
	}
}

// FuzzAppend: what is passed on of a valid object is a valid object with the
// weir object in it.
func FuzzAppend(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, ` {"a": [1, {"b":"\\\""}], "usage":null} `, `{"weir":{},"d":"e"}`, `{"a":1,}`, `[1]`, `{"a"`, `{"a":1}{`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := Read(data)
		var object map[string]json.RawMessage
		if json.Unmarshal(data, &object) != nil || object == nil {
			return
		}
		if c.Bad {
			t.Fatalf("refused the valid object %q", data)
		}
		shown := AppendWeir(nil, (&Rewrite{HideUsage: true}).Append(nil, data), []byte(`{"tier":"cloud"}`))
		var back map[string]json.RawMessage
		if err := json.Unmarshal(shown, &back); err != nil || string(back["weir"]) != `{"tier":"cloud"}` {
			t.Fatalf("%q became %q: %v", data, shown, err)
		}
	})
}

func BenchmarkChunk(b *testing.B) {
	data := []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,"model":"hub-cloud","choices":[{"index":0,"delta":{"content":"light"},"logprobs":null,"finish_reason":null}],"usage":null}`)
	buf := make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		c := Read(data)
		if c.Bad || !c.Token {
			b.Fatal("not a token")
		}
		buf = (&Rewrite{HideUsage: true}).Append(buf[:0], data)
	}
}
