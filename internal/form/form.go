// Package form tells whether an answer has the form that its request asks for: a
// response_format, or tool calls whose arguments fit the tools.
package form

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weirhq/weir/cascade/validate"
	"github.com/weirhq/weir/internal/openai"
)

// Form is what a request asks for.
type Form struct {
	Rules validate.Rules
	// Asked says that it asks for a form at all: a schema, or tool calls.
	Asked bool
	// Beyond says that the form cannot be checked here.
	Beyond bool
}

// maxTools bounds the tools of a request.
const maxTools = 128

// Parse reads the form that a request asks for. The error, an *openai.Error, names
// the member that is wrong.
func Parse(b openai.Body) (Form, error) {
	var k Form
	compiler := validate.NewCompiler()
	if err := k.readFormat(b["response_format"], compiler); err != nil {
		return k, err
	}
	return k, k.readTools(b["tools"], compiler)
}

func (k *Form) readFormat(raw json.RawMessage, compiler *validate.Compiler) error {
	if !Present(raw) {
		return nil
	}
	var f struct {
		Type       string
		JSONSchema *struct {
			Schema json.RawMessage
		} `json:"json_schema"`
	}
	if json.Unmarshal(raw, &f) != nil {
		return openai.BadRequest("response_format", openai.CodeInvalidValue, "response_format must be an object with type")
	}
	var err error
	switch f.Type {
	case "text":
		return nil
	case "json_object":
		k.Rules.Schema, err = validate.ParseSchema([]byte(`{"type":"object"}`))
	case "json_schema":
		if f.JSONSchema == nil || len(f.JSONSchema.Schema) == 0 {
			return openai.BadRequest("response_format.json_schema", openai.CodeMissing, "response_format.json_schema must be an object with name and schema")
		}
		k.Rules.Schema, err = k.schema(compiler, "response_format.json_schema.schema", f.JSONSchema.Schema)
	default:
		return openai.BadRequest("response_format.type", openai.CodeInvalidValue, "response_format.type must be text, json_object or json_schema")
	}
	k.Asked, k.Rules.Truncated = true, true
	return err
}

func (k *Form) readTools(raw json.RawMessage, compiler *validate.Compiler) error {
	if !Present(raw) {
		return nil
	}
	var tools []struct {
		Type     string
		Function *struct {
			Name       string
			Parameters json.RawMessage
		}
	}
	if json.Unmarshal(raw, &tools) != nil {
		return openai.BadRequest("tools", openai.CodeInvalidValue, "tools must be a list of objects with type and function")
	}
	if len(tools) > maxTools {
		return openai.BadRequest("tools", openai.CodeInvalidValue, "tools has %d entries, the most is %d", len(tools), maxTools)
	}
	k.Rules.Tools = make(map[string]*validate.Schema, len(tools))
	for i, t := range tools {
		at := fmt.Sprintf("tools[%d]", i)
		switch {
		case t.Type != "function":
			k.Beyond = true // another kind, which some servers have
			continue
		case t.Function == nil || t.Function.Name == "":
			return openai.BadRequest(at+".function.name", openai.CodeMissing, "%s.function must have a name", at)
		}
		var s *validate.Schema
		if Present(t.Function.Parameters) {
			var err error
			if s, err = k.schema(compiler, at+".function.parameters", t.Function.Parameters); err != nil {
				return err
			}
		}
		k.Rules.Tools[t.Function.Name] = s
	}
	k.Asked = true
	return nil
}

func (k *Form) schema(compiler *validate.Compiler, at string, raw json.RawMessage) (*validate.Schema, error) {
	s, err := compiler.Compile(raw)
	switch {
	case errors.Is(err, validate.ErrUnsupported):
		k.Beyond = true
		return nil, nil
	case err != nil:
		return nil, openai.BadRequest(at, openai.CodeInvalidValue, "%s: %s", at, err)
	}
	return s, nil
}

// Present reports whether a member says anything: it is not absent, null or an
// empty list.
func Present(raw json.RawMessage) bool {
	return len(raw) > 0 && string(raw) != "null" && string(raw) != "[]"
}

// Broken reports whether an answer of so many tokens breaks a rule. One that was
// cut is not looked at unless a form is asked for, nor one that is as long as the
// client allows (most, 0: not known): it is what it asked for.
func Broken(r *validate.Rules, a validate.Answer, tokens, most int) bool {
	if a.Cut && (!r.Truncated || most > 0 && tokens >= most) {
		return false
	}
	return r.Check(a) != nil
}
