package moe

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weirhq/weir/engine"
)

// ErrTemplate says that the model lays out chats in a way that this runner
// does not know.
var ErrTemplate = errors.New("chat template is not ChatML; use the llama runner for this model")

var roles = []string{"system", "user", "assistant", "tool"}

// ChatTokens lays out a chat: a bundled model's own way, else as ChatML. See
// engine.Templater.
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
		return append(out, r.vocab.Tokenize(text, false)...), nil
	}
	if !r.chatML {
		return nil, ErrTemplate
	}
	if len(messages) == 0 {
		return nil, errors.New("chat: no messages")
	}
	for i, m := range messages {
		if !slices.Contains(roles, m.Role) {
			return nil, fmt.Errorf("chat: message %d has role %q", i, m.Role)
		}
		out = append(out, r.vocab.Tokenize("<|im_start|>"+m.Role+"\n", true)...)
		out = append(out, r.vocab.Tokenize(m.Content, false)...)
		if continueFinal && i == len(messages)-1 {
			return out, nil
		}
		out = append(out, r.vocab.Tokenize("<|im_end|>\n", true)...)
	}
	return append(out, r.vocab.Tokenize("<|im_start|>assistant\n", true)...), nil
}
