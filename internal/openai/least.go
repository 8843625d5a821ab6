package openai

import "strings"

// maxTokenBytes is the longest token of the vocabularies in use, a run of
// spaces; cloud/route refuses by the same number.
const maxTokenBytes = 128

// LeastTokens is a number of tokens that the prompt surely has, whatever the
// model: of a chat only its last user message counts, because chat templates
// may drop others, and not the space around it, which they may trim.
func (r *Request) LeastTokens() int {
	text := r.Prompt
	for _, m := range r.Messages {
		if m.Role == "user" {
			text = m.Content
		}
	}
	return len(strings.TrimSpace(text)) / maxTokenBytes
}

// TooLong is the refusal of a prompt beyond the context of every model that may
// be asked.
func (r *Request) TooLong() *Error {
	name := "messages"
	if r.Messages == nil {
		name = "prompt"
	}
	return BadRequest(name, CodeContextLength, "the %s and the answer are longer than the context of any model that may be asked", name)
}
