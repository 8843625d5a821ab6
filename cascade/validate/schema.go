// Package validate checks answers by hard evidence: a JSON schema, the schema
// of a called tool, a pattern, a refusal. What fails is escalated whatever the
// confidence. It is pure.
package validate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"unicode/utf8"
)

// Errors of ParseSchema: found when a schema is compiled, not when an answer is
// checked.
var (
	// ErrSchema says that a schema is wrong, too large or nested too deep.
	ErrSchema = errors.New("schema")
	// ErrUnsupported says that a schema may be right, but asks for what is not
	// checked here.
	ErrUnsupported = errors.New("not supported in schemas")
)

// ErrInvalid says that an answer does not satisfy its validator.
var ErrInvalid = errors.New("invalid answer")

// Limits of schemas and answers.
const (
	maxDepth   = 64
	maxAnswer  = 1 << 20
	maxNodes   = 20_000  // of all schemas of a Compiler
	maxInsts   = 50_000  // of all patterns of a Compiler
	maxPattern = 256     // bytes
	maxSteps   = 250_000 // comparisons of one value with one schema
	// stepWork is how many bytes times instructions of a pattern are one step.
	stepWork = 64
)

// work bounds one check: both the schema and the answer may be hostile.
type work struct {
	depth int
	left  *int
}

func (w work) deeper() work { return work{w.depth + 1, w.left} }

// Schema is a compiled JSON schema: the keywords of draft 2020-12 that tool
// calls use, and references inside the schema. Formats are annotations, as the
// draft has them by default. Conditions and other references are not supported.
type Schema struct {
	never      bool
	ref        *Schema
	types      []string
	enum       []any
	properties map[string]*Schema
	required   []string
	additional *Schema // nil allows anything
	items      *Schema
	anyOf      []*Schema
	oneOf      []*Schema
	allOf      []*Schema
	not        *Schema
	pattern    *regexp.Regexp
	insts      int // of pattern

	minimum, maximum                   float64
	exclusiveMinimum, exclusiveMaximum float64
	multipleOf                         float64
	minLength, maxLength               int
	minItems, maxItems                 int
	unique                             bool
	minProperties, maxProperties       int
}

// ParseSchema compiles a schema. Unknown keywords are ErrUnsupported, except for
// annotations, so that a rule cannot be dropped silently.
func ParseSchema(data []byte) (*Schema, error) { return NewCompiler().Compile(data) }

// decode reads exactly one JSON value.
func decode(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after the JSON value")
	}
	return v, nil
}

// Check returns ErrInvalid with the place of the first violation when the
// answer is not one JSON value that satisfies the schema.
func (s *Schema) Check(answer []byte) error {
	if len(answer) > maxAnswer {
		return fmt.Errorf("%w: longer than %d bytes", ErrInvalid, maxAnswer)
	}
	v, err := decode(answer)
	if err != nil {
		return fmt.Errorf("%w: not JSON: %w", ErrInvalid, err)
	}
	left := maxSteps
	if err := s.check(v, "", work{left: &left}); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

func (s *Schema) check(v any, at string, w work) error {
	if w.depth > maxDepth {
		return fmt.Errorf("%s: nested deeper than %d", place(at), maxDepth)
	}
	if *w.left--; *w.left < 0 {
		return errors.New("too much to check")
	}
	if s.ref != nil {
		if err := s.ref.check(v, at, w.deeper()); err != nil {
			return err
		}
	}
	if s.never {
		return fmt.Errorf("%s: not allowed", place(at))
	}
	if len(s.types) > 0 && !slices.ContainsFunc(s.types, func(t string) bool { return hasType(v, t) }) {
		return fmt.Errorf("%s: want %v", place(at), s.types)
	}
	if s.enum != nil && !slices.ContainsFunc(s.enum, func(e any) bool { return equal(e, v) }) {
		return fmt.Errorf("%s: not one of the allowed values", place(at))
	}
	if err := s.checkCombined(v, at, w); err != nil {
		return err
	}
	switch v := v.(type) {
	case string:
		return s.checkString(v, at, w)
	case json.Number:
		return s.checkNumber(v, at)
	case []any:
		return s.checkArray(v, at, w)
	case map[string]any:
		return s.checkObject(v, at, w)
	}
	return nil
}

func place(at string) string {
	if at == "" {
		return "answer"
	}
	return at
}

func hasType(v any, t string) bool {
	switch v := v.(type) {
	case nil:
		return t == "null"
	case bool:
		return t == "boolean"
	case string:
		return t == "string"
	case []any:
		return t == "array"
	case map[string]any:
		return t == "object"
	case json.Number:
		if t == "number" {
			return true
		}
		f, err := v.Float64()
		return t == "integer" && err == nil && f == math.Trunc(f)
	}
	return false
}

func equal(a, b any) bool {
	if x, ok := a.(json.Number); ok {
		y, ok := b.(json.Number)
		if !ok {
			return false
		}
		fx, ex := x.Float64()
		fy, ey := y.Float64()
		return x == y || (ex == nil && ey == nil && fx == fy)
	}
	return reflect.DeepEqual(a, b)
}

func (s *Schema) checkCombined(v any, at string, w work) error {
	for _, sub := range s.allOf {
		if err := sub.check(v, at, w.deeper()); err != nil {
			return err
		}
	}
	count := func(list []*Schema) (n int) {
		for _, sub := range list {
			if sub.check(v, at, w.deeper()) == nil {
				n++
			}
		}
		return n
	}
	switch {
	case s.anyOf != nil && count(s.anyOf) == 0:
		return fmt.Errorf("%s: fits none of anyOf", place(at))
	case s.oneOf != nil && count(s.oneOf) != 1:
		return fmt.Errorf("%s: does not fit exactly one of oneOf", place(at))
	case s.not != nil && s.not.check(v, at, w.deeper()) == nil:
		return fmt.Errorf("%s: fits what is excluded", place(at))
	}
	return nil
}

func (s *Schema) checkString(v, at string, w work) error {
	n := utf8.RuneCountInString(v)
	if n < s.minLength || n > s.maxLength {
		return fmt.Errorf("%s: length %d", place(at), n)
	}
	if s.pattern == nil {
		return nil
	}
	if *w.left -= len(v) * s.insts / stepWork; *w.left < 0 {
		return errors.New("too much to check")
	}
	if !s.pattern.MatchString(v) {
		return fmt.Errorf("%s: does not match %s", place(at), s.pattern)
	}
	return nil
}

func (s *Schema) checkNumber(v json.Number, at string) error {
	f, err := v.Float64()
	if err != nil {
		return fmt.Errorf("%s: number out of range", place(at))
	}
	if f < s.minimum || f > s.maximum || f <= s.exclusiveMinimum || f >= s.exclusiveMaximum {
		return fmt.Errorf("%s: %s is out of range", place(at), v)
	}
	if s.multipleOf > 0 {
		if q := f / s.multipleOf; math.Abs(q-math.Round(q)) > 1e-9 {
			return fmt.Errorf("%s: %s is not a multiple of %v", place(at), v, s.multipleOf)
		}
	}
	return nil
}

func (s *Schema) checkArray(v []any, at string, w work) error {
	if len(v) < s.minItems || len(v) > s.maxItems {
		return fmt.Errorf("%s: %d items", place(at), len(v))
	}
	for i, item := range v {
		if s.unique {
			*w.left -= i
		}
		if s.unique && *w.left > 0 && slices.ContainsFunc(v[:i], func(o any) bool { return equal(o, item) }) {
			return fmt.Errorf("%s[%d]: occurs twice", at, i)
		}
		if s.items != nil {
			if err := s.items.check(item, fmt.Sprintf("%s[%d]", at, i), w.deeper()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Schema) checkObject(v map[string]any, at string, w work) error {
	if len(v) < s.minProperties || len(v) > s.maxProperties {
		return fmt.Errorf("%s: %d members", place(at), len(v))
	}
	for _, name := range s.required {
		if _, ok := v[name]; !ok {
			return fmt.Errorf("%s.%s: missing", at, name)
		}
	}
	names := make([]string, 0, len(v))
	for name := range v {
		names = append(names, name)
	}
	sort.Strings(names) // the first violation is always the same one
	for _, name := range names {
		sub, ok := s.properties[name]
		if !ok {
			sub = s.additional
		}
		if sub == nil {
			continue
		}
		if err := sub.check(v[name], at+"."+name, w.deeper()); err != nil {
			return err
		}
	}
	return nil
}
