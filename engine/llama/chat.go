package llama

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/weirhq/weir/engine"
)

// fallbackTemplate is used where a model names none or one that llama.cpp does
// not know.
const fallbackTemplate = "chatml"

// ChatTokens lays out a chat by the model's template: see engine.Templater.
//
// llama_chat_apply_template gives one string, in which a content could pose as
// a marker. So it gets placeholders, and the contents are tokenised apart.
func (r *Runner) ChatTokens(messages []engine.Message, continueFinal bool) ([]engine.Token, error) {
	var out []engine.Token
	if r.info.BOS >= 0 {
		out = append(out, r.info.BOS)
	}
	if r.prompt != nil {
		text, err := r.prompt(messages, continueFinal)
		if err != nil {
			return nil, err
		}
		tokens, err := r.Tokenize(text, false)
		return append(out, tokens...), err
	}
	layout, err := r.layOut(messages, continueFinal)
	if err != nil {
		return nil, err
	}
	for i, part := range strings.Split(layout, placeholderMark) {
		text, special := part, true
		if i%2 == 1 {
			n, err := strconv.Atoi(part)
			if err != nil || n < 0 || n >= len(messages) {
				return nil, fmt.Errorf("chat template changed a placeholder to %q", part)
			}
			text, special = messages[n].Content, false
		}
		tokens, err := r.Tokenize(text, special)
		if err != nil {
			return nil, err
		}
		if i == 0 && len(tokens) > 0 && len(out) > 0 && tokens[0] == r.info.BOS {
			tokens = tokens[1:] // the template writes BOS itself
		}
		out = append(out, tokens...)
	}
	return out, nil
}

// placeholderMark stands on both sides of a message's number; templates have no
// reason to contain or change this control character.
const placeholderMark = "\x1f"

// layOut applies the template to numbered placeholders.
func (r *Runner) layOut(messages []engine.Message, continueFinal bool) (string, error) {
	if len(messages) == 0 {
		return "", errors.New("chat: no messages")
	}
	chat := make([]llama.ChatMessage, len(messages))
	for i, m := range messages {
		if !validRole(m.Role) {
			return "", fmt.Errorf("chat: message %d has role %q", i, m.Role)
		}
		chat[i] = llama.NewChatMessage(m.Role, placeholderMark+strconv.Itoa(i)+placeholderMark)
	}
	template := llama.ModelChatTemplate(r.model, "")
	text, ok := apply(template, chat, !continueFinal)
	if template == "" || !ok {
		if text, ok = apply(fallbackTemplate, chat, !continueFinal); !ok {
			return "", errors.New("chat: llama.cpp cannot apply a template")
		}
	}
	if continueFinal {
		text = text[:strings.LastIndex(text, placeholderMark)+1] // drop the end of the turn
	}
	return text, nil
}

func validRole(role string) bool {
	switch role {
	case "system", "user", "assistant", "tool":
		return true
	}
	return false
}

func apply(template string, chat []llama.ChatMessage, generation bool) (string, bool) {
	buf := make([]byte, 256+64*len(chat))
	n := llama.ChatApplyTemplate(template, chat, generation, buf)
	if int(n) > len(buf) {
		buf = make([]byte, n)
		n = llama.ChatApplyTemplate(template, chat, generation, buf)
	}
	if n <= 0 || int(n) > len(buf) {
		return "", false
	}
	return string(buf[:n]), true
}
