package openai

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/weirhq/weir/internal/jsonscan"
)

// kind is a JSON type, as error messages name it.
type kind string

const (
	aString  kind = "a string"
	aNumber  kind = "a number"
	aBoolean kind = "true or false"
	anObject kind = "an object"
	aList    kind = "a list"
)

func kindOf(raw json.RawMessage) kind {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return ""
	}
	switch raw[0] {
	case '"':
		return aString
	case '{':
		return anObject
	case '[':
		return aList
	case 't', 'f':
		return aBoolean
	}
	return aNumber
}

// member is a member of a request with the types that it may have.
type member struct {
	name  string
	kinds []kind
}

// passed are the members of OpenAI's requests that Weir hands on unread.
// Whoever serves the model may refuse them.
var passed = []member{
	{"audio", []kind{anObject}},
	{"best_of", []kind{aNumber}},
	{"echo", []kind{aBoolean}},
	{"frequency_penalty", []kind{aNumber}},
	{"function_call", []kind{aString, anObject}},
	{"functions", []kind{aList}},
	{"logit_bias", []kind{anObject}},
	{"metadata", []kind{anObject}},
	{"modalities", []kind{aList}},
	{"parallel_tool_calls", []kind{aBoolean}},
	{"prediction", []kind{anObject}},
	{"presence_penalty", []kind{aNumber}},
	{"prompt_cache_key", []kind{aString}},
	{"prompt_cache_retention", []kind{aString}},
	{"reasoning_effort", []kind{aString}},
	{"response_format", []kind{anObject}},
	{"safety_identifier", []kind{aString}},
	{"service_tier", []kind{aString}},
	{"store", []kind{aBoolean}},
	{"suffix", []kind{aString}},
	{"tool_choice", []kind{aString, anObject}},
	{"tools", []kind{aList}},
	{"user", []kind{aString}},
	{"verbosity", []kind{aString}},
	{"web_search_options", []kind{anObject}},
}

// passedInMessage are those of a message.
var passedInMessage = []member{
	{"audio", []kind{anObject}},
	{"function_call", []kind{anObject}},
	{"refusal", []kind{aString}},
	{"tool_call_id", []kind{aString}},
	{"tool_calls", []kind{aList}},
}

// nested are the members inside others that Weir reads into types of its own,
// which takes them in any capitals; whoever serves the model does not.
var nested = []struct {
	name string
	as   any
}{
	{"messages", []struct {
		Role    string `json:"role"`
		Name    string `json:"name"`
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"content"`
	}{}},
	{"response_format", struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}{}},
	{"tools", []struct {
		Type     string `json:"type"`
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	}{}},
}

// exact refuses other capitals in the members of nested.
func (p *parser) exact() {
	for _, m := range nested {
		if raw := p.get(m.name); raw != nil {
			p.err = Misspelt(m.name, raw, m.as)
		}
	}
}

// Misspelt refuses a member of raw, the request's member at, that would be read
// into v although its name has other capitals.
func Misspelt(at string, raw json.RawMessage, v any) error {
	name := jsonscan.Misspelt(raw, reflect.TypeOf(v))
	if name == "" {
		return nil
	}
	if name[0] != '[' {
		at += "."
	}
	return BadRequest(clip(at+name), CodeUnknownMember, "%s is no member: capitals matter", clip(at+name))
}

// kinds checks the types of members that are handed on unread; null is as good
// as absent.
func (p *parser) kinds(of []member) {
	for _, m := range of {
		if raw := p.get(m.name); raw != nil && !slices.Contains(m.kinds, kindOf(raw)) {
			p.fail(m.name, "must be %s", oneOf(m.kinds))
		}
	}
}

func oneOf(kinds []kind) string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	return strings.Join(names, " or ")
}
