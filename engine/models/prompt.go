package models

import (
	"errors"
	"strings"

	"github.com/weirhq/weir/engine"
)

// ErrNoUserMessage says that a chat has nothing for the model to answer.
var ErrNoUserMessage = errors.New("messages hold no user message with text")

// Prompt lays out a chat for the bundled models, without BOS. They know one
// turn: the last user message, lower-cased and without final marks, because
// that is all they were trained on. With continueFinal the last message is the
// assistant's and the prompt ends with its text.
func Prompt(messages []engine.Message, continueFinal bool) (string, error) {
	var begun string
	if n := len(messages) - 1; continueFinal && n >= 0 {
		begun, messages = messages[n].Content, messages[:n]
	}
	for i := len(messages) - 1; i >= 0; i-- {
		if messages[i].Role != "user" {
			continue
		}
		text := Normalise(messages[i].Content)
		if text == "" {
			break
		}
		return "U: " + text + "\nA: " + begun, nil
	}
	return "", ErrNoUserMessage
}

// Normalise turns a question into the form of the training data: lower case,
// no space around it, no final '?', '!' or '.'.
func Normalise(question string) string {
	return strings.ToLower(strings.TrimSpace(strings.TrimRight(question, "?!. \t\r\n")))
}
