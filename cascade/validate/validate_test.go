package validate

import (
	"errors"
	"regexp"
	"strings"
	"testing"
)

func mustSchema(t testing.TB, s string) *Schema {
	t.Helper()
	c, err := ParseSchema([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSchema(t *testing.T) {
	command := `{"type":"object","required":["do","room"],"additionalProperties":false,"properties":{
		"do":{"type":"string","pattern":"^[a-z]+\\.[a-z]+$"},"room":{"enum":["kitchen","hall"]},
		"value":{"type":"integer","minimum":0,"maximum":100,"multipleOf":5},
		"except":{"type":"array","items":{"type":"string","minLength":2},"uniqueItems":true,"maxItems":2}}}`
	tree := `{"$ref":"#/definitions/node","definitions":{"node":{"type":"object","required":["n"],"properties":{
		"n":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/definitions/node"}}}}}}`
	tests := []struct {
		schema, answer string
		ok             bool
	}{
		{command, `{"do":"light.on","room":"kitchen"}`, true},
		{command, ` {"do":"light.set","room":"hall","value":20.0,"except":["aa","bb"]} `, true},
		{command, `{"do":"light.on"}`, false},
		{command, `{"do":"light on","room":"kitchen"}`, false},
		{command, `{"do":"light.on","room":"moon"}`, false},
		{command, `{"do":"light.on","room":"hall","value":7}`, false},
		{command, `{"do":"light.on","room":"hall","value":105}`, false},
		{command, `{"do":"light.on","room":"hall","value":2.5}`, false},
		{command, `{"do":"light.on","room":"hall","extra":1}`, false},
		{command, `{"do":"light.on","room":"hall","except":["aa","aa"]}`, false},
		{command, `{"do":"light.on","room":"hall","except":["aa","bb","cc"]}`, false},
		{command, `{"do":"light.on","room":"hall"} and more`, false},
		{command, `light.on`, false},
		{command, ``, false},
		{`true`, `[]`, true},
		{`false`, `[]`, false},
		{`{"type":["string","null"]}`, `null`, true},
		{`{"const":1}`, `1.0`, true},
		{`{"anyOf":[{"type":"string"},{"minimum":3,"type":"number"}]}`, `2`, false},
		{`{"oneOf":[{"type":"number"},{"type":"integer"}]}`, `2`, false},
		{`{"oneOf":[{"type":"number"},{"type":"integer"}]}`, `2.5`, true},
		{`{"not":{"type":"string"}}`, `"x"`, false},
		{`{"allOf":[{"minProperties":1},{"maxProperties":1}]}`, `{"a":1}`, true},
		{`{"exclusiveMinimum":0}`, `0`, false},
		{`{"maxLength":2}`, `"äöü"`, false},
		{`{"maxLength":3}`, `"äöü"`, true},
		{`{}`, strings.Repeat("[", 200), false},
		{`{"format":"date"}`, `"soon"`, true},
		{`{"$ref":"#/$defs/a~1b","$defs":{"a/b":{"type":"string"}}}`, `"x"`, true},
		{`{"$ref":"#/$defs/a~1b","$defs":{"a/b":{"type":"string"}}}`, `1`, false},
		{`{"$ref":"#/$defs/a","maxLength":1,"$defs":{"a":{"type":"string"}}}`, `"xy"`, false},
		{tree, `{"n":1,"kids":[{"n":2},{"n":3,"kids":[{"n":4}]}]}`, true},
		{tree, `{"n":1,"kids":[{"n":2},{"n":3,"kids":[{"n":"4"}]}]}`, false},
		{`{"$ref":"#"}`, `1`, false},
		{`{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}`, `1`, false},
	}
	for _, tt := range tests {
		err := mustSchema(t, tt.schema).Check([]byte(tt.answer))
		if (err == nil) != tt.ok {
			t.Errorf("%s against %s: %v", tt.answer, tt.schema, err)
		}
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%v is not ErrInvalid", err)
		}
	}
}

func TestSchemaIsStrict(t *testing.T) {
	for _, bad := range []string{
		`{"$ref":"#/x"}`, `{"$ref":1}`, `{"type":"text"}`, `{"minimum":"3"}`, `{"minLength":-1}`,
		`{"properties":[]}`, `{"anyOf":[]}`, `{"enum":1}`, `{"required":[1]}`, `7`, ``, `{} {}`,
		strings.Repeat(`{"not":`, 100) + `true` + strings.Repeat(`}`, 100),
		`{"anyOf":[` + strings.Repeat(`true,`, 20_000) + `true]}`,
	} {
		if _, err := ParseSchema([]byte(bad)); !errors.Is(err, ErrSchema) || errors.Is(err, ErrUnsupported) {
			t.Errorf("schema %.60s: %v", bad, err)
		}
	}
	for _, other := range []string{`{"typ":"string"}`, `{"if":{}}`, `{"$ref":"https://example.org/x"}`, `{"pattern":"(?=x)"}`,
		`{"pattern":"` + strings.Repeat("a", 300) + `"}`, `{"pattern":"(` + strings.Repeat(`\\pL`, 60) + `){1000}"}`} {
		if _, err := ParseSchema([]byte(other)); !errors.Is(err, ErrUnsupported) || errors.Is(err, ErrSchema) {
			t.Errorf("schema %.60s: %v", other, err)
		}
	}
	mustSchema(t, `{"title":"t","description":"d","default":1,"type":"integer"}`)
}

func TestRules(t *testing.T) {
	r := Rules{Refusals: true, Truncated: true, Pattern: regexp.MustCompile(`\d`),
		Tools: map[string]*Schema{"set": mustSchema(t, `{"required":["v"]}`), "any": nil}}
	tests := []struct {
		a  Answer
		ok bool
	}{
		{Answer{Text: "it is 5"}, true},
		{Answer{Text: "five"}, false},
		{Answer{Text: "  "}, false},
		{Answer{Text: "it is 5", Cut: true}, false},
		{Answer{Text: "I'm sorry, I cannot help with 5"}, false},
		{Answer{Text: "I’m sorry, no 5"}, false},
		{Answer{Calls: []ToolCall{{"set", `{"v":1}`}}}, true},
		{Answer{Calls: []ToolCall{{"set", `{}`}}}, false},
		{Answer{Calls: []ToolCall{{"set", `{"v":`}}}, false},
		{Answer{Calls: []ToolCall{{"any", `{"x":1}`}}}, true},
		{Answer{Calls: []ToolCall{{"other", `{}`}}}, false},
	}
	for _, tt := range tests {
		if err := r.Check(tt.a); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt.a, err)
		}
	}
	if IsRefusal("The word sorry comes from Old English 5") {
		t.Error("a text about refusals is called one")
	}
}

func FuzzSchema(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"a":{"anyOf":[{"type":"null"},{"enum":[1,"x"]}]}}}`), []byte(`{"a":1}`))
	f.Add([]byte(`{"items":{"pattern":"^a+$"}}`), []byte(`["aaa"]`))
	f.Fuzz(func(t *testing.T, schema, answer []byte) {
		s, err := ParseSchema(schema)
		if err != nil {
			return
		}
		first, second := s.Check(answer), s.Check(answer)
		if (first == nil) != (second == nil) {
			t.Fatalf("%v and then %v", first, second)
		}
	})
}

func TestCheckIsBounded(t *testing.T) {
	big := "[" + strings.Repeat("1,", 300_000) + "2]"
	if err := mustSchema(t, `{"uniqueItems":true}`).Check([]byte(strings.ReplaceAll(big, "1,", "[],"))); err == nil {
		t.Error("equal items pass")
	}
	deep := `{"items":` + strings.Repeat(`{"anyOf":[{"type":"number"},`, 20) + `{}` + strings.Repeat(`]}`, 20) + `}`
	if err := mustSchema(t, deep).Check([]byte(big)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a check without end: %v", err)
	}
}

// A few bytes of pattern are thousands of instructions: all schemas of a request
// share what may be compiled, and a check counts what matching takes.
func TestPatternsAreBounded(t *testing.T) {
	const counted = `{"pattern":"^(a?){1000}$"}`
	c, compiled := NewCompiler(), 0
	var last error
	for range 128 {
		if _, err := c.Compile([]byte(counted)); err != nil {
			last = err
			continue
		}
		compiled++
	}
	if compiled == 0 || compiled > 25 || !errors.Is(last, ErrUnsupported) {
		t.Errorf("%d patterns of over 2,000 instructions are compiled, then %v", compiled, last)
	}
	s := mustSchema(t, counted)
	if err := s.Check([]byte(`"` + strings.Repeat("a", 900) + `"`)); err != nil {
		t.Error(err)
	}
	if err := s.Check([]byte(`"` + strings.Repeat("a", 500_000) + `"`)); err == nil || !strings.Contains(err.Error(), "too much") {
		t.Errorf("a match without bounds: %v", err)
	}
}
