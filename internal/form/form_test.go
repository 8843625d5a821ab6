package form

import (
	"encoding/json"
	"testing"

	"github.com/weirhq/weir/cascade/validate"
	"github.com/weirhq/weir/internal/openai"
)

func TestBroken(t *testing.T) {
	f, err := Parse(openai.Body{"response_format": json.RawMessage(`{"type":"json_object"}`)})
	if err != nil || !f.Asked || f.Beyond {
		t.Fatalf("%+v, %v", f, err)
	}
	for _, tt := range []struct {
		text         string
		cut          bool
		tokens, most int
		want         bool
	}{
		{`{"a":1}`, false, 3, 0, false},
		{`{"a":`, false, 3, 0, true},
		{`{"a":`, true, 3, 3, false}, // as long as the client allows
		{`{"a":`, true, 3, 9, true},
	} {
		if got := Broken(&f.Rules, validate.Answer{Text: tt.text, Cut: tt.cut}, tt.tokens, tt.most); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// What a client sends gives rules, or an error that names a member.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"type":"json_schema","json_schema":{"schema":{"type":"object"}}}`), []byte(`[{"type":"function","function":{"name":"f","parameters":{}}}]`))
	f.Add([]byte(`{"type":"text"}`), []byte(`[{"type":"web_search"}]`))
	f.Fuzz(func(t *testing.T, format, tools []byte) {
		_, err := Parse(openai.Body{"response_format": format, "tools": tools})
		if err != nil && openai.AsError(err).Param == "" {
			t.Fatalf("%v names no member", err)
		}
	})
}
