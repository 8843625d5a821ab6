package openai

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
)

const okMessages = `"messages":[{"role":"user","content":"hi"}]`

func TestParseChatNamesTheField(t *testing.T) {
	tests := []struct{ body, param string }{
		{`{` + okMessages + `}`, "model"},
		{`{"model":1,` + okMessages + `}`, "model"},
		{`{"model":"m"}`, "messages"},
		{`{"model":"m","messages":[]}`, "messages"},
		{`{"model":"m","messages":"hi"}`, "messages"},
		{`{"model":"m","messages":["hi"]}`, "messages[0]"},
		{`{"model":"m","messages":[null]}`, "messages[0]"},
		{`{"model":"m","messages":[{"content":"x"}]}`, "messages[0].role"},
		{`{"model":"m","messages":[{"role":"robot","content":"x"}]}`, "messages[0].role"},
		{`{"model":"m","messages":[{"role":"user"}]}`, "messages[0].content"},
		{`{"model":"m","messages":[{"role":"user","content":5}]}`, "messages[0].content"},
		{`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, "messages[0].content[0].type"},
		{`{"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]}`, "messages[0].content[0].text"},
		{`{"model":"m","temperature":"hot",` + okMessages + `}`, "temperature"},
		{`{"model":"m","temperature":3,` + okMessages + `}`, "temperature"},
		{`{"model":"m","top_p":-0.1,` + okMessages + `}`, "top_p"},
		{`{"model":"m","min_p":2,` + okMessages + `}`, "min_p"},
		{`{"model":"m","top_k":1.5,` + okMessages + `}`, "top_k"},
		{`{"model":"m","seed":"a",` + okMessages + `}`, "seed"},
		{`{"model":"m","max_tokens":0,` + okMessages + `}`, "max_tokens"},
		{`{"model":"m","max_completion_tokens":[],` + okMessages + `}`, "max_completion_tokens"},
		{`{"model":"m","stop":5,` + okMessages + `}`, "stop"},
		{`{"model":"m","stop":["a","b","c","d","e"],` + okMessages + `}`, "stop"},
		{`{"model":"m","stop":"",` + okMessages + `}`, "stop"},
		{`{"model":"m","n":0,` + okMessages + `}`, "n"},
		{`{"model":"m","stream":"yes",` + okMessages + `}`, "stream"},
		{`{"model":"m","stream_options":{"include_usage":true},` + okMessages + `}`, "stream_options"},
		{`{"model":"m","stream":true,"stream_options":{"include_usage":3},` + okMessages + `}`, "stream_options.include_usage"},
		{`{"model":"m","logprobs":1,` + okMessages + `}`, "logprobs"},
		{`{"model":"m","logprobs":true,"top_logprobs":21,` + okMessages + `}`, "top_logprobs"},
		{`{"model":"m","top_logprobs":2,` + okMessages + `}`, "top_logprobs"},
		{`{"model":"m","continue_final_message":true,` + okMessages + `}`, "add_generation_prompt"},
	}
	for _, tt := range tests {
		b, err := ParseBody([]byte(tt.body))
		if err != nil {
			t.Fatalf("%s: %v", tt.body, err)
		}
		_, err = ParseChat(b)
		var e *Error
		if !errors.As(err, &e) || e.Status != 400 || e.Param != tt.param {
			t.Errorf("%s: got %v; want a 400 naming %s", tt.body, err, tt.param)
		}
	}
}

func TestParseChat(t *testing.T) {
	b, err := ParseBody([]byte(`{"model":"m","messages":[{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
		{"role":"user","content":"c"}],"max_tokens":5,"max_completion_tokens":7.0,"temperature":0,"stop":"x","stream":true,
		"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":2,"seed":-3,"tools":null}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseChat(b)
	if err != nil {
		t.Fatal(err)
	}
	if r.Messages[0].Content != "ab" || *r.MaxTokens != 7 || *r.Temperature != 0 || r.Stop[0] != "x" ||
		!r.IncludeUsage || r.TopLogprobs != 2 || *r.Seed != -3 || r.N != 1 {
		t.Errorf("got %+v", r)
	}
}

func TestParseBody(t *testing.T) {
	for _, bad := range []string{"", "[]", "null", "5", `{"a":1`, `{"a":1}{}`, `{"a":tru}`, "{\"a\":\"\xff\"}"} {
		_, err := ParseBody([]byte(bad))
		var e *Error
		if !errors.As(err, &e) || e.Status != 400 || e.Code != CodeInvalidJSON {
			t.Errorf("ParseBody(%q) = %v; want a 400 %s", bad, err, CodeInvalidJSON)
		}
	}
}

func TestReadBodyRefusesOtherTypes(t *testing.T) {
	for ct, want := range map[string]int{"text/plain": 415, "": 415, "application/json; charset=utf-8": 0} {
		r := httptest.NewRequest("POST", "/", strings.NewReader("{}"))
		r.Header.Set("Content-Type", ct)
		_, err := ReadBody(r)
		var e *Error
		if errors.As(err, &e); (e == nil && want != 0) || (e != nil && e.Status != want) {
			t.Errorf("content type %q: got %v, want status %d", ct, err, want)
		}
	}
}

// A member that is there twice, wherever, is refused by its path, and so are
// other capitals of what is read inside others.
func TestReadBodyRefusesAmbiguity(t *testing.T) {
	const chat = `{"model":"m","messages":[{"role":"user","content":"x"}]`
	for body, want := range map[string]string{
		chat + `,"model":"m"}`:                                                                                                       "model",
		chat + `,"m\u006fdel":"m"}`:                                                                                                  "model",
		chat + `,"weir":{"privacy":"local-only"},"weir":{}}`:                                                                         "weir",
		chat + `,"weir":{"privacy":"local-only","privacy":"any"}}`:                                                                   "weir.privacy",
		chat + `,"stream":true,"stream_options":{"include_usage":true,"include_usage":false}}`:                                       "stream_options.include_usage",
		chat + `,"response_format":{"type":"text","type":"json_object"}}`:                                                            "response_format.type",
		chat + `,"response_format":{"type":"text","Type":"json_object"}}`:                                                            "response_format.Type",
		chat + `,"tools":[{"type":"function","function":{"name":"f","NAME":"g"}}]}`:                                                  "tools[0].function.NAME",
		chat + `,"metadata":{"a":"b","a":"c"}}`:                                                                                      "metadata.a",
		`{"model":"m","messages":[{"role":"user","role":"system","content":"x"}]}`:                                                   "messages[0].role",
		`{"model":"m","messages":[{"role":"user","Role":"system","content":"x"}]}`:                                                   "messages[0].Role",
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x","TEXT":"y"}]}]}`:                               "messages[0].content[0].TEXT",
		chat + `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{},"A":{}}}}}]}`: "",
		chat + `,"metadata":{"a":"b","A":"c"}}`:                                                                                      "",
	} {
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		b, err := ReadBody(r)
		if err == nil {
			_, err = ParseChat(b)
		}
		var e *Error
		if errors.As(err, &e); (e == nil) != (want == "") || e != nil && (e.Status != 400 || e.Param != want) {
			t.Errorf("%s: %v, want a refusal of %q", body, err, want)
		}
	}
}

// A body that is too large is read to its end, so that its sender gets to see
// the error; one that is announced as far too large is not read at all.
func TestReadBodyTooLarge(t *testing.T) {
	var e *Error
	body := strings.NewReader(strings.Repeat(" ", MaxBody+1000))
	r := httptest.NewRequest("POST", "/", body)
	r.Header.Set("Content-Type", "application/json")
	if _, err := ReadBody(r); !errors.As(err, &e) || e.Status != 413 || body.Len() != 0 {
		t.Errorf("got %v with %d bytes unread, want 413 and none", err, body.Len())
	}
	r = httptest.NewRequest("POST", "/", iotest.ErrReader(errors.New("was read")))
	r.Header.Set("Content-Type", "application/json")
	r.ContentLength = 2*MaxBody + 1
	if _, err := ReadBody(r); !errors.As(err, &e) || e.Status != 413 {
		t.Errorf("got %v, want 413", err)
	}
}

func TestStripInner(t *testing.T) {
	b, _ := ParseBody([]byte(`{"model":"m","kv_transfer_params":{"remote_host":"x"},"priority":9,"future_member":1}`))
	gone := b.StripInner()
	if strings.Join(gone, ",") != "kv_transfer_params,priority" || len(b) != 2 {
		t.Errorf("stripped %v, left %s", gone, b.JSON())
	}
}

func TestParseError(t *testing.T) {
	tests := []struct{ name, body, message, code string }{
		{"nested", `{"error":{"message":"too long","type":"invalid_request_error","param":null,"code":"context_length_exceeded"}}`, "too long", "context_length_exceeded"},
		{"nested, code a number", `{"error":{"message":"m","type":"BadRequestError","param":"x","code":400}}`, "m", CodeUpstream},
		{"flat", `{"object":"error","message":"flat","type":"BadRequestError","param":null,"code":400}`, "flat", CodeUpstream},
		{"ollama", `{"error":"no such model"}`, "no such model", CodeUpstream},
		{"html", `<html>502</html>`, "the model server answered 400 Bad Request", CodeUpstream},
		{"empty", ``, "the model server answered 400 Bad Request", CodeUpstream},
	}
	for _, tt := range tests {
		if e := ParseError(400, []byte(tt.body)); e.Message != tt.message || e.Code != tt.code {
			t.Errorf("%s: got %q %q, want %q %q", tt.name, e.Message, e.Code, tt.message, tt.code)
		}
	}
}

func TestErrorBodyHasAllFourMembers(t *testing.T) {
	var got struct{ Error map[string]any }
	if err := json.Unmarshal(Internal(errors.New("secret dsn")).Body(nil), &got); err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"message", "type", "param", "code"} {
		if _, ok := got.Error[m]; !ok {
			t.Errorf("member %s is absent", m)
		}
	}
	if strings.Contains(got.Error["message"].(string), "secret") {
		t.Error("the cause leaked")
	}
}

func TestLeastTokens(t *testing.T) {
	long := strings.Repeat("x", 10<<20)
	for _, tt := range []struct {
		name string
		r    Request
		want int
	}{
		{"a text", Request{Prompt: long}, 81_920},
		{"a chat", Request{Messages: []Message{{Role: "system", Content: "be kind"}, {Role: "user", Content: long}, {Role: "assistant", Content: "well"}}}, 81_920},
		{"what a template may drop", Request{Messages: []Message{{Role: "user", Content: long}, {Role: "tool", Content: long}, {Role: "user", Content: "hi"}}}, 0},
		{"what a template may trim", Request{Prompt: strings.Repeat(" ", 10<<20)}, 0},
		{"nothing", Request{}, 0},
	} {
		if got := tt.r.LeastTokens(); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func FuzzParseChat(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"stop":["a"]}`))
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"seed":9e99}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := ParseBody(data)
		if err == nil {
			_, err = ParseChat(b)
		}
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Status != 400) {
			t.Fatalf("%q: %v is not a 400", data, err)
		}
	})
}

func FuzzParseError(f *testing.F) {
	f.Add(500, []byte(`{"error":{"message":1}}`))
	f.Fuzz(func(t *testing.T, status int, data []byte) {
		if e := ParseError(status, data); e.Message == "" {
			t.Fatal("empty message")
		}
	})
}
