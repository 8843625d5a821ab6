package validate

import (
	"fmt"
	"regexp"
	"strings"
)

// Rules are the validators of a request. All that are set must hold.
type Rules struct {
	// Schema is the response format that the client asked for.
	Schema *Schema
	// Tools maps the name of each offered tool to the schema of its arguments;
	// nil schema allows any JSON.
	Tools map[string]*Schema
	// Pattern must be found in the text.
	Pattern *regexp.Regexp
	// Refusals rejects answers that decline to answer.
	Refusals bool
	// Truncated says that an answer cut by the model's own limit is a failure;
	// a cut at the client's max_tokens is what it asked for.
	Truncated bool
}

// ToolCall is a call in an answer.
type ToolCall struct{ Name, Arguments string }

// Answer is what is checked.
type Answer struct {
	Text  string
	Calls []ToolCall
	// Cut says that the generation ended at the model's limit.
	Cut bool
}

// Check returns ErrInvalid with the reason when an answer breaks a rule. An
// empty answer without calls always does.
func (r *Rules) Check(a Answer) error {
	text := strings.TrimSpace(a.Text)
	if text == "" && len(a.Calls) == 0 {
		return fmt.Errorf("%w: empty", ErrInvalid)
	}
	if r.Truncated && a.Cut {
		return fmt.Errorf("%w: cut at the model's limit", ErrInvalid)
	}
	for _, c := range a.Calls {
		if err := r.checkCall(c); err != nil {
			return err
		}
	}
	if len(a.Calls) > 0 {
		return nil
	}
	if r.Schema != nil {
		if err := r.Schema.Check([]byte(text)); err != nil {
			return err
		}
	}
	if r.Pattern != nil && !r.Pattern.MatchString(a.Text) {
		return fmt.Errorf("%w: does not match %s", ErrInvalid, r.Pattern)
	}
	if r.Refusals && IsRefusal(text) {
		return fmt.Errorf("%w: refusal", ErrInvalid)
	}
	return nil
}

func (r *Rules) checkCall(c ToolCall) error {
	schema, ok := r.Tools[c.Name]
	if !ok {
		return fmt.Errorf("%w: tool %q was not offered", ErrInvalid, c.Name)
	}
	if schema == nil {
		schema = anything
	}
	if err := schema.Check([]byte(c.Arguments)); err != nil {
		return fmt.Errorf("arguments of %q: %w", c.Name, err)
	}
	return nil
}

var anything = anySchema()

// refusal finds the opening of an English answer that declines. It looks only
// at the beginning: a text about refusals is not one.
var refusal = regexp.MustCompile(`(?i)^\W*(i'?m (sorry|afraid|unable|not able)|i am (sorry|afraid|unable|not able)|sorry,|i (can'?t|cannot|can not|won'?t|do not know|don'?t know)|as an ai\b|unfortunately,? i)`)

// IsRefusal reports whether a short text declines to answer.
func IsRefusal(text string) bool {
	return len(text) < 400 && refusal.MatchString(strings.ReplaceAll(text, "\u2019", "'"))
}
