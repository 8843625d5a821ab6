package openapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Schema is a JSON Schema (2020-12) as far as our types need it.
type Schema struct {
	Ref                  string             `json:"$ref,omitempty"`
	Type                 any                `json:"type,omitempty"` // a string, or a list with "null"
	Format               string             `json:"format,omitempty"`
	Description          string             `json:"description,omitempty"`
	Enum                 []any              `json:"enum,omitempty"`
	Items                *Schema            `json:"items,omitempty"`
	AnyOf                []*Schema          `json:"anyOf,omitempty"`
	Properties           map[string]*Schema `json:"properties,omitempty"`
	Required             []string           `json:"required,omitempty"`
	AdditionalProperties any                `json:"additionalProperties,omitempty"`
	Examples             []any              `json:"examples,omitempty"`
}

var (
	timeType = reflect.TypeFor[time.Time]()
	rawType  = reflect.TypeFor[json.RawMessage]()
	holdType = reflect.TypeFor[interface{ Holds() any }]()
)

// input is the schema of a request body, written out in place. Members that it
// does not name are refused.
func (d *Document) input(t reflect.Type) *Schema {
	s := d.object(t, true)
	s.AdditionalProperties = false
	return s
}

// output is the schema of an answer: named types become components.
func (d *Document) output(t reflect.Type) *Schema { return d.schema(t, false) }

func (d *Document) schema(t reflect.Type, in bool) *Schema {
	switch {
	case t == timeType:
		return &Schema{Type: "string", Format: "date-time"}
	case t == rawType:
		return &Schema{Type: []string{"object", "null"}}
	case t.Implements(holdType):
		v, _ := reflect.Zero(t).Interface().(interface{ Holds() any })
		return d.schema(reflect.TypeOf(v.Holds()), in)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return nullable(d.schema(t.Elem(), in))
	case reflect.String:
		return &Schema{Type: "string"}
	case reflect.Bool:
		return &Schema{Type: "boolean"}
	case reflect.Float64, reflect.Float32:
		return &Schema{Type: "number"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return &Schema{Type: "integer", Format: "int64"}
	case reflect.Slice, reflect.Array:
		return &Schema{Type: "array", Items: d.schema(t.Elem(), in)}
	case reflect.Struct:
		if in || t.Name() == "" {
			return d.object(t, in)
		}
		return &Schema{Ref: "#/components/schemas/" + d.component(t)}
	}
	panic(fmt.Sprintf("openapi: no schema for %s", t))
}

func nullable(s *Schema) *Schema {
	if s.Ref != "" {
		return &Schema{AnyOf: []*Schema{s, {Type: "null"}}}
	}
	if name, ok := s.Type.(string); ok {
		s.Type = []string{name, "null"}
	}
	return s
}

// component makes the type's schema once and returns its name.
func (d *Document) component(t reflect.Type) string {
	if name, ok := d.types[t]; ok {
		return name
	}
	name := componentName(t.Name())
	if _, taken := d.schemas[name]; taken {
		panic("openapi: two types are named " + name)
	}
	d.types[t] = name
	d.schemas[name] = nil // taken, while members are looked at
	d.schemas[name] = d.object(t, false)
	return name
}

// componentName makes list[some/path.Key] into KeyList.
func componentName(s string) string {
	outer, inner, generic := strings.Cut(s, "[")
	if generic {
		inner = strings.TrimSuffix(inner, "]")
		return upper(inner[strings.LastIndexByte(inner, '.')+1:]) + upper(outer)
	}
	return upper(s)
}

func upper(s string) string {
	r := []rune(s)
	r[0] = unicode.ToUpper(r[0])
	return string(r)
}

func (d *Document) object(t reflect.Type, in bool) *Schema {
	s := &Schema{Type: "object", Properties: map[string]*Schema{}}
	d.members(s, t, in)
	return s
}

func (d *Document) members(s *Schema, t reflect.Type, in bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case f.Anonymous && name == "":
			d.members(s, f.Type, in)
			continue
		case name == "":
			name = f.Name
		}
		m := d.schema(f.Type, in)
		describe(m, f)
		s.Properties[name] = m
		if !in && !strings.Contains(opts, "omit") || in && f.Tag.Get("need") == "true" {
			s.Required = append(s.Required, name)
		}
	}
}

func describe(s *Schema, f reflect.StructField) {
	s.Description = f.Tag.Get("doc")
	if format := f.Tag.Get("format"); format != "" {
		s.Format = format
	}
	if list, ok := f.Tag.Lookup("enum"); ok {
		for _, e := range strings.Split(list, ",") {
			s.Enum = append(s.Enum, e)
		}
		if types, ok := s.Type.([]string); ok && types[1] == "null" {
			s.Enum = append(s.Enum, nil)
		}
	}
	if text, ok := f.Tag.Lookup("example"); ok {
		s.Examples = []any{s.example(text)}
	}
}

// example reads the text of a tag as a value of the schema.
func (s *Schema) example(text string) any {
	kind, _ := s.Type.(string)
	if types, ok := s.Type.([]string); ok {
		kind = types[0]
	}
	var v any
	var err error
	switch kind {
	case "integer":
		v, err = strconv.ParseInt(text, 10, 64)
	case "number":
		v, err = strconv.ParseFloat(text, 64)
	case "boolean":
		v, err = strconv.ParseBool(text)
	case "array":
		v = []any{s.Items.example(text)}
	case "object":
		err = json.Unmarshal([]byte(text), &v)
	default:
		v = text
	}
	if err != nil {
		panic(fmt.Sprintf("openapi: example %q is no %s", text, kind))
	}
	return v
}
