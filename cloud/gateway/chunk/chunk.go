// Package chunk reads and rewrites the events of an upstream's stream in
// place. Decoding each into a struct would allocate per token and lose members
// that Weir does not know.
package chunk

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
	s := scanObject(data)
	for s.next() {
		switch {
		case s.is("choices"):
			if first := firstElement(s.val); first != nil {
				e.Empty = false
				e.readChoice(first)
			}
		case s.is("usage"):
			e.NullUsage = isNull(s.val)
			if !e.NullUsage {
				e.Usage = s.val
			}
		case s.is("error"):
			if !isNull(s.val) {
				e.Fault = s.val
			}
		case s.is("model"):
			e.Model = s.val
		case s.is("kv_transfer_params"), s.is("ec_transfer_params"), s.is("weir"):
			e.Inner = true
		}
	}
	e.Bad = !s.ok
	return e
}

func (e *Event) readChoice(choice []byte) {
	s := scanObject(choice)
	for s.next() {
		switch {
		case s.is("delta"):
			e.Token = e.Token || deltaHasToken(s.val)
		case s.is("text"):
			e.Token = e.Token || filled(s.val)
		case s.is("finish_reason"):
			if !isNull(s.val) {
				e.Finish = s.val
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

// Failed reports whether the engine itself says that it could not finish.
func (e *Event) Failed() bool {
	return e.Fault != nil || string(e.Finish) == `"error"` || string(e.Finish) == `"abort"`
}

// AppendWithout appends the object data to dst without the members that stay
// inside, and without usage when hideUsage is set.
func AppendWithout(dst, data []byte, hideUsage bool) []byte {
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
	if filled(data[:end]) {
		dst = append(dst, ',')
	}
	dst = append(dst, `"weir":`...)
	dst = append(dst, weir...)
	return append(dst, '}')
}
