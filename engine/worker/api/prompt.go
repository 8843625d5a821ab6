package api

import (
	"strings"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/internal/openai"
)

// Tokenizer is the part of an engine.Runner that may be used while the loop
// steps. Where it is an engine.Templater too, its template lays out chats.
type Tokenizer interface {
	Tokenize(text string, special bool) ([]engine.Token, error)
}

// promptTokens turns a request into the model's prompt.
func (m *Model) promptTokens(r *openai.Request, chat bool) ([]engine.Token, error) {
	member := "prompt"
	if chat {
		member = "messages"
	}
	if err := m.tooLong(r, chat, member); err != nil {
		return nil, err
	}
	var tokens []engine.Token
	var err error
	switch t, ok := m.Tokenizer.(engine.Templater); {
	case !chat:
		tokens, err = m.plain(r.Prompt)
	case ok:
		tokens, err = t.ChatTokens(turns(r.Messages), r.Continue)
	default:
		tokens, err = m.plain(layOut(r.Messages, r.Continue))
	}
	if err != nil {
		return nil, &openai.Error{Status: 400, Type: openai.TypeInvalidRequest, Code: openai.CodeInvalidValue, Param: member,
			Message: member + " cannot be turned into a prompt: " + clip(err.Error()), NoRetry: true, Cause: err}
	}
	if len(tokens) == 0 {
		return nil, openai.BadRequest(member, openai.CodeInvalidValue, "%s is empty", member)
	}
	if room := m.room(); len(tokens) >= room {
		return nil, contextError(member, room, "has %d tokens", len(tokens))
	}
	return tokens, nil
}

// room is how many tokens prompt and answer may have together.
func (m *Model) room() int { return min(m.Info.Context, m.Info.KVTokens) }

func contextError(member string, room int, format string, a ...any) error {
	return openai.BadRequest(member, openai.CodeContextLength, "%s "+format+": the model's context is %d tokens, the answer's included",
		append(append([]any{member}, a...), room)...)
}

// tooLong refuses, without tokenising it, a text whose bytes alone cannot fit:
// megabytes would keep a core busy only to be refused afterwards. Of a chat
// only the last user message is sure to be in the prompt.
func (m *Model) tooLong(r *openai.Request, chat bool, member string) error {
	size := len(r.Prompt)
	if chat {
		for _, msg := range r.Messages {
			if msg.Role == "user" {
				size = len(msg.Content)
			}
		}
	}
	// A tokenizer may drop white space or marks, so a little more is let through.
	if least := size / m.Pieces.Longest() / 2; least > m.room() {
		return contextError(member, m.room(), "has at least %d tokens", least)
	}
	return nil
}

// plain is text without a template, after BOS where the model wants it.
func (m *Model) plain(text string) ([]engine.Token, error) {
	tokens, err := m.Tokenizer.Tokenize(text, false)
	if m.Info.BOS >= 0 {
		tokens = append([]engine.Token{m.Info.BOS}, tokens...)
	}
	return tokens, err
}

// turns maps OpenAI's roles to those of the engine contract.
func turns(messages []openai.Message) []engine.Message {
	out := make([]engine.Message, len(messages))
	for i, m := range messages {
		role := m.Role
		switch role {
		case "developer":
			role = "system"
		case "function":
			role = "tool"
		}
		out[i] = engine.Message{Role: role, Content: m.Content}
	}
	return out
}

// layOut is the chat format for runners that know none.
func layOut(messages []openai.Message, continueFinal bool) string {
	var b strings.Builder
	for i, m := range turns(messages) {
		b.WriteString(m.Role + ": " + m.Content)
		if !continueFinal || i < len(messages)-1 {
			b.WriteByte('\n')
		}
	}
	if !continueFinal {
		b.WriteString("assistant: ")
	}
	return b.String()
}
