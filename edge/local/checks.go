package local

import (
	"errors"
	"net/http"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/validate"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/form"
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

// parseChecks reads the form that the client asks for. The error names the
// member that is wrong.
func parseChecks(b openai.Body) (checks, error) {
	f, err := form.Parse(b)
	return checks{rules: f.Rules, form: f.Asked, beyond: f.Beyond}, err
}

// whole reports whether an answer can be checked only when it is finished.
func (k *checks) whole() bool {
	return k.form || k.rules.Pattern != nil || k.rules.Refusals
}

// failed reports whether the answer breaks a rule. An answer that is as long as
// the client allows is what it asked for.
func (k *checks) failed(d *upstream.Draft, most int) bool {
	a := validate.Answer{Text: d.Text, Cut: d.Finish == openai.FinishLength}
	for _, c := range d.Calls {
		a.Calls = append(a.Calls, validate.ToolCall{Name: c.Name, Arguments: c.Arguments})
	}
	return form.Broken(&k.rules, a, d.Usage.CompletionTokens, most)
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
