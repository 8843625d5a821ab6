package validate

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"sort"
)

// annotations say nothing about validity.
var annotations = map[string]bool{
	"title": true, "description": true, "default": true, "examples": true, "$schema": true, "$id": true,
	"$comment": true, "deprecated": true, "readOnly": true, "writeOnly": true, "strict": true,
}

type compiler struct{ left int }

func (c *compiler) compile(v any, depth int) (*Schema, error) {
	if c.left--; c.left < 0 || depth > maxDepth {
		return nil, errors.New("too large or nested too deep")
	}
	s := &Schema{minimum: math.Inf(-1), maximum: math.Inf(1), exclusiveMinimum: math.Inf(-1), exclusiveMaximum: math.Inf(1),
		maxLength: math.MaxInt, maxItems: math.MaxInt, maxProperties: math.MaxInt}
	switch v := v.(type) {
	case bool:
		s.never = !v
		return s, nil
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			if err := c.keyword(s, k, v[k], depth); err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
		}
		return s, nil
	}
	return nil, errors.New("want an object or true or false")
}

func (c *compiler) keyword(s *Schema, key string, v any, depth int) (err error) {
	switch key {
	case "type":
		s.types, err = typeNames(v)
	case "enum":
		list, ok := v.([]any)
		if !ok {
			return errors.New("want a list")
		}
		s.enum = append([]any{}, list...)
	case "const":
		s.enum = []any{v}
	case "required":
		s.required, err = texts(v)
	case "properties":
		s.properties, err = c.named(v, depth)
	case "additionalProperties":
		s.additional, err = c.compile(v, depth+1)
	case "items":
		s.items, err = c.compile(v, depth+1)
	case "not":
		s.not, err = c.compile(v, depth+1)
	case "anyOf":
		s.anyOf, err = c.list(v, depth)
	case "oneOf":
		s.oneOf, err = c.list(v, depth)
	case "allOf":
		s.allOf, err = c.list(v, depth)
	case "pattern":
		s.pattern, err = pattern(v)
	case "uniqueItems":
		s.unique, _ = v.(bool)
	default:
		if annotations[key] {
			return nil
		}
		return limit(s, key, v)
	}
	return err
}

func limit(s *Schema, key string, v any) error {
	floats := map[string]*float64{"minimum": &s.minimum, "maximum": &s.maximum, "exclusiveMinimum": &s.exclusiveMinimum,
		"exclusiveMaximum": &s.exclusiveMaximum, "multipleOf": &s.multipleOf}
	counts := map[string]*int{"minLength": &s.minLength, "maxLength": &s.maxLength, "minItems": &s.minItems,
		"maxItems": &s.maxItems, "minProperties": &s.minProperties, "maxProperties": &s.maxProperties}
	n, _ := v.(json.Number)
	if to, ok := floats[key]; ok {
		f, err := n.Float64()
		if err != nil || (key == "multipleOf" && f <= 0) {
			return errors.New("want a number")
		}
		*to = f
		return nil
	}
	if to, ok := counts[key]; ok {
		i, err := n.Int64()
		if err != nil || i < 0 || i > math.MaxInt32 {
			return errors.New("want a count")
		}
		*to = int(i)
		return nil
	}
	return errors.New("this keyword is not supported")
}

func typeNames(v any) ([]string, error) {
	names := []string{}
	switch v := v.(type) {
	case string:
		names = append(names, v)
	default:
		var err error
		if names, err = texts(v); err != nil {
			return nil, err
		}
	}
	for _, n := range names {
		switch n {
		case "null", "boolean", "string", "number", "integer", "array", "object":
		default:
			return nil, fmt.Errorf("unknown type %q", n)
		}
	}
	return names, nil
}

func texts(v any) ([]string, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, errors.New("want a list of texts")
	}
	var out []string
	for _, e := range list {
		t, ok := e.(string)
		if !ok {
			return nil, errors.New("want a list of texts")
		}
		out = append(out, t)
	}
	return out, nil
}

func (c *compiler) named(v any, depth int) (map[string]*Schema, error) {
	obj, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("want an object")
	}
	out := make(map[string]*Schema, len(obj))
	for name, sub := range obj {
		s, err := c.compile(sub, depth+1)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[name] = s
	}
	return out, nil
}

func (c *compiler) list(v any, depth int) ([]*Schema, error) {
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return nil, errors.New("want a list of schemas")
	}
	var out []*Schema
	for i, sub := range list {
		s, err := c.compile(sub, depth+1)
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		out = append(out, s)
	}
	return out, nil
}

func pattern(v any) (*regexp.Regexp, error) {
	text, ok := v.(string)
	if !ok {
		return nil, errors.New("want a text")
	}
	return regexp.Compile(text)
}
