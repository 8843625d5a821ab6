package validate

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"sort"
	"strings"
)

// annotations say nothing about validity.
var annotations = map[string]bool{
	"title": true, "description": true, "default": true, "examples": true, "$schema": true, "$id": true,
	"$comment": true, "deprecated": true, "readOnly": true, "writeOnly": true, "strict": true,
	"format": true, "contentEncoding": true, "contentMediaType": true,
	"$defs": true, "definitions": true, // compiled where they are referred to
}

// Compiler makes the schemas of one request, which share its limits: 20,000
// nodes, and 50,000 instructions of compiled patterns.
type Compiler struct{ nodes, insts int }

// NewCompiler returns a compiler that has made nothing yet.
func NewCompiler() *Compiler { return &Compiler{nodes: maxNodes, insts: maxInsts} }

// Compile is ParseSchema within what the limits have left.
func (c *Compiler) Compile(data []byte) (*Schema, error) {
	v, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	one := compiler{Compiler: c, root: v, refs: map[string]*Schema{}}
	s, err := one.compile(v, 0)
	switch {
	case errors.Is(err, ErrUnsupported):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	return s, nil
}

// compiler makes one Schema. refs are the schemas that references lead to, the
// unfinished ones too: a schema may refer to itself.
type compiler struct {
	*Compiler
	root any
	refs map[string]*Schema
}

func (c *compiler) compile(v any, depth int) (*Schema, error) {
	if c.nodes--; c.nodes < 0 || depth > maxDepth {
		return nil, errTooLarge
	}
	s := anySchema()
	return s, c.fill(s, v, depth)
}

func anySchema() *Schema {
	return &Schema{minimum: math.Inf(-1), maximum: math.Inf(1), exclusiveMinimum: math.Inf(-1), exclusiveMaximum: math.Inf(1),
		maxLength: math.MaxInt, maxItems: math.MaxInt, maxProperties: math.MaxInt}
}

func (c *compiler) fill(s *Schema, v any, depth int) error {
	switch v := v.(type) {
	case bool:
		s.never = !v
		return nil
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			if err := c.keyword(s, k, v[k], depth); err != nil {
				return fmt.Errorf("%s: %w", k, err)
			}
		}
		return nil
	}
	return errors.New("want an object or true or false")
}

// reference finds the schema that a JSON pointer into this document leads to.
func (c *compiler) reference(v any, depth int) (*Schema, error) {
	at, ok := v.(string)
	if !ok {
		return nil, errors.New("want a text")
	}
	if s := c.refs[at]; s != nil {
		return s, nil
	}
	path, inside := strings.CutPrefix(at, "#")
	if !inside || path != "" && path[0] != '/' {
		return nil, fmt.Errorf("reference to another document: %w", ErrUnsupported)
	}
	to := c.root
	for _, name := range strings.Split(path, "/")[1:] {
		object, _ := to.(map[string]any)
		if to, ok = object[pointerName.Replace(name)]; !ok {
			return nil, fmt.Errorf("%q leads nowhere", at)
		}
	}
	s := anySchema()
	c.refs[at] = s
	if c.nodes--; c.nodes < 0 || depth > maxDepth {
		return nil, errTooLarge
	}
	return s, c.fill(s, to, depth+1)
}

var pointerName = strings.NewReplacer("~1", "/", "~0", "~")

var errTooLarge = errors.New("too large or nested too deep")

func (c *compiler) keyword(s *Schema, key string, v any, depth int) (err error) {
	switch key {
	case "$ref":
		s.ref, err = c.reference(v, depth)
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
		s.pattern, s.insts, err = c.pattern(v)
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
	return fmt.Errorf("this keyword is %w", ErrUnsupported)
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

// pattern compiles a pattern and counts its instructions. A counted repetition
// makes a thousand of them from a few bytes.
func (c *Compiler) pattern(v any) (re *regexp.Regexp, insts int, err error) {
	text, ok := v.(string)
	if !ok {
		return nil, 0, errors.New("want a text")
	}
	if len(text) > maxPattern || c.insts <= 0 {
		return nil, 0, fmt.Errorf("patterns of this size are %w", ErrUnsupported)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil { // it may be right in the dialect of ECMA-262
		return nil, 0, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if c.insts -= len(prog.Inst); c.insts < 0 {
		return nil, 0, fmt.Errorf("patterns of this size are %w", ErrUnsupported)
	}
	if re, err = regexp.Compile(text); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return re, len(prog.Inst), nil
}
