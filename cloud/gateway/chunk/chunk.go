// Package chunk reads and rewrites the events of an upstream's stream in
// place. Decoding each into a struct would allocate per token and lose members
// that Weir does not know.
package chunk

import "github.com/weirhq/weir/internal/jsonscan"

// Event is what the relay needs to know of one event of an upstream stream.
// Its slices point into the event.
type Event struct {
	Bad    bool   // not a JSON object
	Fault  []byte // the error member
	Token  bool   // carries generated text, reasoning or a tool call
	Finish []byte // finish_reason with its quotes, nil while it is null
	Usage  []byte // nil while it is absent or null
	Model  []byte // with its quotes
	// Inner says that the event has members which never leave the gateway.
	Inner bool
	// NullUsage says that usage is there and null.
	NullUsage bool
	Empty     bool // choices is absent or empty
}

// Read reads a chat or text completion chunk without allocating.
func Read(data []byte) Event {
	e := Event{Empty: true}
	s := jsonscan.Members(data)
	for s.Next() {
		switch {
		case s.Is("choices"):
			if first := jsonscan.First(s.Val); first != nil {
				e.Empty = false
				e.readChoice(first)
			}
		case s.Is("usage"):
			e.NullUsage = jsonscan.IsNull(s.Val)
			if !e.NullUsage {
				e.Usage = s.Val
			}
		case s.Is("error"):
			if !jsonscan.IsNull(s.Val) {
				e.Fault = s.Val
			}
		case s.Is("model"):
			e.Model = s.Val
		case s.Is("kv_transfer_params"), s.Is("ec_transfer_params"), s.Is("weir"):
			e.Inner = true
		}
	}
	e.Bad = !s.OK()
	return e
}

func (e *Event) readChoice(choice []byte) {
	s := jsonscan.Members(choice)
	for s.Next() {
		switch {
		case s.Is("delta"):
			e.Token = e.Token || deltaHasToken(s.Val)
		case s.Is("text"):
			e.Token = e.Token || jsonscan.Filled(s.Val)
		case s.Is("finish_reason"):
			if !jsonscan.IsNull(s.Val) {
				e.Finish = s.Val
			}
		}
	}
}

func deltaHasToken(delta []byte) bool {
	s := jsonscan.Members(delta)
	for s.Next() {
		if (s.Is("content") || s.Is("reasoning") || s.Is("reasoning_content") || s.Is("refusal") || s.Is("tool_calls")) && jsonscan.Filled(s.Val) {
			return true
		}
	}
	return false
}

// Failed reports whether the engine itself says that it could not finish.
func (e *Event) Failed() bool {
	return e.Fault != nil || string(e.Finish) == `"error"` || string(e.Finish) == `"abort"`
}

// AppendWithout appends the object data to dst without the members that stay
// inside, and without usage when hideUsage is set.
func AppendWithout(dst, data []byte, hideUsage bool) []byte {
	s := jsonscan.Members(data)
	dst = append(dst, '{')
	first := true
	for s.Next() {
		if s.Is("kv_transfer_params") || s.Is("ec_transfer_params") || s.Is("weir") || hideUsage && s.Is("usage") {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, '"')
		dst = append(dst, s.Key...)
		dst = append(dst, '"', ':')
		dst = append(dst, s.Val...)
	}
	return append(dst, '}')
}

// AppendWeir appends the object data to dst with the member weir at its end.
func AppendWeir(dst, data, weir []byte) []byte {
	end := len(data)
	for end > 0 && data[end-1] != '}' {
		end--
	}
	if end == 0 {
		return append(dst, data...)
	}
	body := data[:end-1]
	dst = append(dst, body...)
	if jsonscan.Filled(data[:end]) {
		dst = append(dst, ',')
	}
	dst = append(dst, `"weir":`...)
	dst = append(dst, weir...)
	return append(dst, '}')
}
