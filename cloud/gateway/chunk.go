package gateway

import (
	"encoding/json"

	"github.com/weirhq/weir/internal/openai"
)

// chunk is what the relay needs to know of one event of an upstream stream.
// Its slices point into the event.
type chunk struct {
	bad    bool   // not a JSON object
	fault  []byte // the error member
	token  bool   // carries generated text, reasoning or a tool call
	finish []byte // finish_reason with its quotes, nil while it is null
	usage  []byte // nil while it is absent or null
	model  []byte // with its quotes
	// inner says that the event has members which never leave the gateway.
	inner bool
	// nullUsage says that usage is there and null.
	nullUsage bool
	empty     bool // choices is absent or empty
}

// readChunk reads a chat or text completion chunk without allocating.
func readChunk(data []byte) chunk {
	c := chunk{empty: true}
	s := scanObject(data)
	for s.next() {
		switch {
		case s.is("choices"):
			if first := firstElement(s.val); first != nil {
				c.empty = false
				c.readChoice(first)
			}
		case s.is("usage"):
			c.nullUsage = isNull(s.val)
			if !c.nullUsage {
				c.usage = s.val
			}
		case s.is("error"):
			if !isNull(s.val) {
				c.fault = s.val
			}
		case s.is("model"):
			c.model = s.val
		case s.is("kv_transfer_params"), s.is("ec_transfer_params"), s.is("weir"):
			c.inner = true
		}
	}
	c.bad = !s.ok
	return c
}

func (c *chunk) readChoice(choice []byte) {
	s := scanObject(choice)
	for s.next() {
		switch {
		case s.is("delta"):
			c.token = c.token || deltaHasToken(s.val)
		case s.is("text"):
			c.token = c.token || filled(s.val)
		case s.is("finish_reason"):
			if !isNull(s.val) {
				c.finish = s.val
			}
		}
	}
}

func deltaHasToken(delta []byte) bool {
	s := scanObject(delta)
	for s.next() {
		if (s.is("content") || s.is("reasoning") || s.is("reasoning_content") || s.is("refusal") || s.is("tool_calls")) && filled(s.val) {
			return true
		}
	}
	return false
}

// failed reports whether the engine itself says that it could not finish.
func (c *chunk) failed() bool {
	return c.fault != nil || string(c.finish) == `"error"` || string(c.finish) == `"abort"`
}

// appendWithout appends the object data to dst without the members that stay
// inside, and without usage when hideUsage is set.
func appendWithout(dst, data []byte, hideUsage bool) []byte {
	s := scanObject(data)
	dst = append(dst, '{')
	first := true
	for s.next() {
		if s.is("kv_transfer_params") || s.is("ec_transfer_params") || s.is("weir") || hideUsage && s.is("usage") {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, '"')
		dst = append(dst, s.key...)
		dst = append(dst, '"', ':')
		dst = append(dst, s.val...)
	}
	return append(dst, '}')
}

// appendWeir appends the object data to dst with the member weir at its end.
func appendWeir(dst, data, weir []byte) []byte {
	end := len(data)
	for end > 0 && data[end-1] != '}' {
		end--
	}
	if end == 0 {
		return append(dst, data...)
	}
	body := data[:end-1]
	dst = append(dst, body...)
	if filled(data[:end]) {
		dst = append(dst, ',')
	}
	dst = append(dst, `"weir":`...)
	dst = append(dst, weir...)
	return append(dst, '}')
}

// readUsage decodes a usage object; nil when it is not one or is impossible.
func readUsage(raw []byte) *openai.Usage {
	var u openai.Usage
	if raw == nil || json.Unmarshal(raw, &u) != nil || u.PromptTokens < 0 || u.CompletionTokens < 0 {
		return nil
	}
	if d := u.PromptTokensDetails; d != nil && (d.CachedTokens < 0 || d.CachedTokens > u.PromptTokens) {
		u.PromptTokensDetails = nil
	}
	if d := u.CompletionTokensDetails; d != nil && (d.ReasoningTokens < 0 || d.ReasoningTokens > u.CompletionTokens) {
		u.CompletionTokensDetails = nil
	}
	return &u
}
