package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/validate"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// checks are the validators of a request's local answer.
type checks struct {
	rules validate.Rules
	// form says that the client asked for a form: a schema, or tool calls.
	form bool
	// beyond says that the form cannot be checked here: the edge does not take
	// the request.
	beyond bool
}

// maxTools bounds the tools of a request.
const maxTools = 128

// parseChecks reads the form that the client asks for. The error names the
// member that is wrong.
func parseChecks(b openai.Body) (checks, error) {
	var k checks
	compiler := validate.NewCompiler()
	if err := k.readFormat(b["response_format"], compiler); err != nil {
		return k, err
	}
	return k, k.readTools(b["tools"], compiler)
}

func (k *checks) readFormat(raw json.RawMessage, compiler *validate.Compiler) error {
	if !present(raw) {
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
		k.rules.Schema, err = validate.ParseSchema([]byte(`{"type":"object"}`))
	case "json_schema":
		if f.JSONSchema == nil || len(f.JSONSchema.Schema) == 0 {
			return openai.BadRequest("response_format.json_schema", openai.CodeMissing, "response_format.json_schema must be an object with name and schema")
		}
		k.rules.Schema, err = k.schema(compiler, "response_format.json_schema.schema", f.JSONSchema.Schema)
	default:
		return openai.BadRequest("response_format.type", openai.CodeInvalidValue, "response_format.type must be text, json_object or json_schema")
	}
	k.form, k.rules.Truncated = true, true
	return err
}

func (k *checks) readTools(raw json.RawMessage, compiler *validate.Compiler) error {
	if !present(raw) {
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
	k.rules.Tools = make(map[string]*validate.Schema, len(tools))
	for i, t := range tools {
		at := fmt.Sprintf("tools[%d]", i)
		switch {
		case t.Type != "function":
			k.beyond = true // another kind, which some servers have
			continue
		case t.Function == nil || t.Function.Name == "":
			return openai.BadRequest(at+".function.name", openai.CodeMissing, "%s.function must have a name", at)
		}
		var s *validate.Schema
		if present(t.Function.Parameters) {
			var err error
			if s, err = k.schema(compiler, at+".function.parameters", t.Function.Parameters); err != nil {
				return err
			}
		}
		k.rules.Tools[t.Function.Name] = s
	}
	k.form = true
	return nil
}

func (k *checks) schema(compiler *validate.Compiler, at string, raw json.RawMessage) (*validate.Schema, error) {
	s, err := compiler.Compile(raw)
	switch {
	case errors.Is(err, validate.ErrUnsupported):
		k.beyond = true
		return nil, nil
	case err != nil:
		return nil, openai.BadRequest(at, openai.CodeInvalidValue, "%s: %s", at, err)
	}
	return s, nil
}

// whole reports whether an answer can be checked only when it is finished.
func (k *checks) whole() bool {
	return k.form || k.rules.Pattern != nil || k.rules.Refusals
}

// failed reports whether the answer breaks a rule. An answer that is as long as
// the client allows is what it asked for.
func (k *checks) failed(d *upstream.Draft, most int) bool {
	cut := d.Finish == openai.FinishLength
	if cut && most > 0 && d.Usage.CompletionTokens >= most {
		return false
	}
	if cut && !k.rules.Truncated {
		return false
	}
	a := validate.Answer{Text: d.Text, Cut: cut}
	for _, c := range d.Calls {
		a.Calls = append(a.Calls, validate.ToolCall{Name: c.Name, Arguments: c.Arguments})
	}
	return k.rules.Check(a) != nil
}

// refusesFormat reports whether the local model's server cannot constrain an
// answer to a form. It is then asked without, and the answer is checked.
func refusesFormat(err error) bool {
	e, ok := errors.AsType[*openai.Error](err)
	return ok && e.Status == 400 && e.Param == "response_format" && e.Code == openai.CodeUnsupported
}

// formRefused reports whether no tier can meet the form: the edge's answer
// breaks it, and the cloud finds the request wrong. The client then hears what
// is wrong, and not an answer that is none.
func (f *flight) formRefused() bool {
	e, answered := errors.AsType[*openai.Error](f.cloud)
	if !f.broken || !answered || e.Status != http.StatusBadRequest {
		return false
	}
	f.cause = cascade.ReasonValidatorFailed
	f.record(tenants.OutcomeEscalated, f.cause)
	return true
}
