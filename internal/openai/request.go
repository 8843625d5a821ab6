package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Limits of a request's members.
const (
	MaxMessages    = 4096
	MaxStops       = 4
	MaxStopBytes   = 512
	MaxTopLogprobs = 20
	MaxModelBytes  = 256
)

// Roles that a message may have.
var Roles = []string{"developer", "system", "user", "assistant", "tool", "function"}

// Request is what Weir reads of a chat or text completion request. Pointers
// are nil where the client left the member out.
type Request struct {
	Model    string
	Messages []Message // chat
	Prompt   string    // text completion

	MaxTokens    *int // max_completion_tokens, or max_tokens
	Temperature  *float64
	TopP         *float64
	MinP         *float64
	TopK         *int
	Seed         *int64
	Stop         []string
	N            int
	Stream       bool
	IncludeUsage bool
	Logprobs     bool
	TopLogprobs  int
	// IgnoreEOS and MinTokens are vLLM's, used by benchmarks.
	IgnoreEOS bool
	MinTokens int
	// Continue asks to go on with the last assistant message
	// (continue_final_message true and add_generation_prompt false).
	Continue bool
}

// Message is one turn of a chat. Content is the text of a string or of all
// text parts.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	Name    string `json:"name,omitempty"`
}

// ParseChat checks a chat completion request. The error is an *Error that
// names the member. Members it does not know are ignored: see Unsupported.
func ParseChat(b Body) (*Request, error) {
	r, err := parseShared(b)
	if err != nil {
		return nil, err
	}
	if r.Messages, err = parseMessages(b["messages"]); err != nil {
		return nil, err
	}
	p := parser{b: b}
	r.Logprobs = p.boolean("logprobs")
	r.TopLogprobs = p.integer("top_logprobs", 0, 0, MaxTopLogprobs)
	addPrompt := p.optBoolean("add_generation_prompt")
	r.Continue = p.boolean("continue_final_message")
	if p.get("prompt") != nil {
		p.fail("prompt", "belongs to /v1/completions: a chat has messages")
	}
	if p.err != nil {
		return nil, p.err
	}
	if r.TopLogprobs > 0 && !r.Logprobs {
		return nil, BadRequest("top_logprobs", CodeInvalidValue, "top_logprobs needs logprobs to be true")
	}
	if r.Continue {
		if addPrompt == nil || *addPrompt {
			return nil, BadRequest("add_generation_prompt", CodeInvalidValue, "continue_final_message needs add_generation_prompt to be false")
		}
		if r.Messages[len(r.Messages)-1].Role != "assistant" {
			return nil, BadRequest("messages", CodeInvalidValue, "continue_final_message needs an assistant message at the end")
		}
	}
	return r, nil
}

// ParseCompletion checks a text completion request: prompt is a string,
// logprobs an integer.
func ParseCompletion(b Body) (*Request, error) {
	r, err := parseShared(b)
	if err != nil {
		return nil, err
	}
	p := parser{b: b}
	raw, ok := b["prompt"]
	if !ok || isNull(raw) {
		return nil, BadRequest("prompt", CodeMissing, "prompt is missing")
	}
	if json.Unmarshal(raw, &r.Prompt) != nil {
		return nil, BadRequest("prompt", CodeInvalidValue, "prompt must be a string: lists of prompts and token lists are not supported")
	}
	if lp := p.optInteger("logprobs", 0, MaxTopLogprobs); lp != nil {
		r.Logprobs, r.TopLogprobs = true, *lp
	}
	if p.get("messages") != nil {
		p.fail("messages", "belongs to /v1/chat/completions: a text completion has a prompt")
	}
	if p.err != nil {
		return nil, p.err
	}
	return r, nil
}

func parseShared(b Body) (*Request, error) {
	p := parser{b: b}
	r := &Request{Model: p.text("model", MaxModelBytes)}
	if p.err == nil && r.Model == "" {
		return nil, BadRequest("model", CodeMissing, "model is missing: use \"auto\" or a name from GET /v1/models")
	}
	r.MaxTokens = p.optInteger("max_completion_tokens", 1, math.MaxInt32)
	if old := p.optInteger("max_tokens", 1, math.MaxInt32); r.MaxTokens == nil {
		r.MaxTokens = old
	}
	r.Temperature = p.optNumber("temperature", 0, 2)
	r.TopP = p.optNumber("top_p", 0, 1)
	r.MinP = p.optNumber("min_p", 0, 1)
	r.TopK = p.optInteger("top_k", -1, math.MaxInt32)
	r.Seed = p.optInt64("seed")
	r.Stop = p.stops("stop")
	r.N = p.integer("n", 1, 1, 128)
	r.Stream = p.boolean("stream")
	r.IgnoreEOS = p.boolean("ignore_eos")
	r.MinTokens = p.integer("min_tokens", 0, 0, math.MaxInt32)
	r.IncludeUsage = p.streamOptions(r.Stream)
	p.kinds(passed)
	p.exact()
	return r, p.err
}

func parseMessages(raw json.RawMessage) ([]Message, error) {
	if raw == nil || isNull(raw) {
		return nil, BadRequest("messages", CodeMissing, "messages is missing")
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return nil, BadRequest("messages", CodeInvalidValue, "messages must be a list of objects")
	}
	if len(items) == 0 {
		return nil, BadRequest("messages", CodeInvalidValue, "messages is empty: send at least one message")
	}
	if len(items) > MaxMessages {
		return nil, BadRequest("messages", CodeInvalidValue, "messages has %d entries, the most is %d", len(items), MaxMessages)
	}
	out := make([]Message, len(items))
	for i, item := range items {
		m, err := parseMessage(fmt.Sprintf("messages[%d]", i), item)
		if err != nil {
			return nil, err
		}
		out[i] = m
	}
	return out, nil
}

func parseMessage(at string, raw json.RawMessage) (Message, error) {
	var m Message
	b, err := objectOf(raw)
	if err != nil {
		return m, BadRequest(at, CodeInvalidValue, "%s must be an object with role and content", at)
	}
	p := parser{b: b, prefix: at + "."}
	m.Role = p.text("role", 32)
	m.Name = p.text("name", 256)
	p.kinds(passedInMessage)
	if p.err != nil {
		return m, p.err
	}
	if m.Role == "" {
		return m, BadRequest(at+".role", CodeMissing, "%s.role is missing", at)
	}
	if !slices.Contains(Roles, m.Role) {
		return m, BadRequest(at+".role", CodeInvalidValue, "%s.role must be one of %s", at, strings.Join(Roles, ", "))
	}
	m.Content, err = parseContent(at+".content", b["content"], m.Role)
	return m, err
}

func parseContent(at string, raw json.RawMessage, role string) (string, error) {
	if raw == nil || isNull(raw) {
		if role == "assistant" { // a turn that only called tools
			return "", nil
		}
		return "", BadRequest(at, CodeMissing, "%s is missing", at)
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return "", BadRequest(at, CodeInvalidValue, "%s must be a string or a list of parts", at)
	}
	var text strings.Builder
	for i, raw := range parts {
		var part struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		here := fmt.Sprintf("%s[%d]", at, i)
		if json.Unmarshal(raw, &part) != nil {
			return "", BadRequest(here, CodeInvalidValue, "%s must be an object with type and text", here)
		}
		if part.Type != "text" {
			return "", BadRequest(here+".type", CodeUnsupported, "%s.type %q is not supported: only text parts are", here, clip(part.Type))
		}
		if part.Text == nil {
			return "", BadRequest(here+".text", CodeMissing, "%s.text is missing", here)
		}
		text.WriteString(*part.Text)
	}
	return text.String(), nil
}
