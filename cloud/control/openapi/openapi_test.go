package openapi

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

type inner struct {
	A string `json:"a" doc:"first" enum:"x,y"`
}

type page[T any] struct {
	Data []T    `json:"data"`
	Next string `json:"next,omitempty"`
}

type everything struct {
	inner
	N      int64           `json:"n" example:"5" need:"true"`
	F      *float64        `json:"f" example:"0.5"`
	B      bool            `json:"b,omitempty" example:"true"`
	T      *time.Time      `json:"t" example:"2026-01-31T00:00:00Z"`
	L      []string        `json:"l" example:"one"`
	R      json.RawMessage `json:"r" example:"{\"k\": 1}"`
	P      *inner          `json:"p"`
	Hidden string          `json:"-"`
	secret string
}

func build(t *testing.T) (doc map[string]any) {
	t.Helper()
	ops := []Operation{{ID: "x", Method: "POST", Path: "/x/{id}", Summary: "s", In: everything{}, Out: page[everything]{}, Status: 201,
		Params: []Param{{Name: "id", In: "path"}, {Name: "q", In: "query", Enum: []string{"u"}}}}}
	b, err := json.Marshal(Build(Info{Title: "t", Version: "1"}, ops, inner{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// at walks into a document.
func at(t *testing.T, v any, path ...string) any {
	t.Helper()
	for _, name := range path {
		m, ok := v.(map[string]any)
		if !ok {
			t.Fatalf("%v: %s is not in an object", path, name)
		}
		v = m[name]
	}
	return v
}

func TestSchemasOfTypes(t *testing.T) {
	_ = everything{}.secret
	doc := build(t)
	body := at(t, doc, "paths", "/x/{id}", "post", "requestBody", "content", "application/json", "schema")
	for path, want := range map[string]any{
		"a": map[string]any{"type": "string", "description": "first", "enum": []any{"x", "y"}},
		"n": map[string]any{"type": "integer", "format": "int64", "examples": []any{5.0}},
		"f": map[string]any{"type": []any{"number", "null"}, "examples": []any{0.5}},
		"b": map[string]any{"type": "boolean", "examples": []any{true}},
		"t": map[string]any{"type": []any{"string", "null"}, "format": "date-time", "examples": []any{"2026-01-31T00:00:00Z"}},
		"l": map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "examples": []any{[]any{"one"}}},
		"r": map[string]any{"type": []any{"object", "null"}, "examples": []any{map[string]any{"k": 1.0}}},
	} {
		if got := at(t, body, "properties", path); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	if got := at(t, body, "required"); !reflect.DeepEqual(got, []any{"n"}) || at(t, body, "additionalProperties") != false {
		t.Errorf("a request needs %v", got)
	}
	out := at(t, doc, "components", "schemas", "Everything")
	if got := at(t, out, "required"); !reflect.DeepEqual(got, []any{"a", "n", "f", "t", "l", "r", "p"}) {
		t.Errorf("an answer has %v", got)
	}
	if at(t, out, "properties", "Hidden") != nil || at(t, out, "properties", "secret") != nil {
		t.Error("members that JSON does not show are described")
	}
	ref := at(t, doc, "components", "schemas", "EverythingPage", "properties", "data", "items", "$ref")
	if ref != "#/components/schemas/Everything" {
		t.Errorf("items are %v", ref)
	}
	if at(t, doc, "paths", "/x/{id}", "post", "responses", "201") == nil || at(t, doc, "paths", "/x/{id}", "post", "responses", "default") == nil {
		t.Error("answers are missing")
	}
}

func TestMistakesInTagsPanic(t *testing.T) {
	type bad struct {
		N int64 `json:"n" example:"many"`
	}
	type odd struct {
		C chan int `json:"c"`
	}
	for name, v := range map[string]any{"example": bad{}, "type": odd{}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			Build(Info{}, []Operation{{Method: "POST", Path: "/", In: v}}, inner{})
		}()
	}
}
