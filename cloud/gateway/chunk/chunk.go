// Package chunk reads and rewrites the events of an upstream's stream in
// place. Decoding each into a struct would allocate per token and lose members
// that Weir does not know.
package chunk

import "github.com/weirhq/weir/internal/jsonscan"

// Event is what the relay needs to know of one event of an upstream stream.
// Its slices point into the event.
type Event struct {
	Bad   bool   // not a JSON object
	Fault []byte // the error member
	Token bool   // carries generated text, reasoning or a tool call
	Text  []byte // the text of it with its quotes, nil without
	Other bool   // carries something else than text: reasoning, a refusal, a tool call
	Think bool   // carries reasoning
	Calls bool   // carries a tool call
	IDs   []byte // token_ids, nil while absent or null
	Probs []byte // logprobs, nil while absent, null or empty
	ID    []byte // of the answer, with its quotes
	// Created is when the answer says that it was begun.
	Created []byte
	// Moved is the member weir_migrated: the answer goes on elsewhere.
	Moved  []byte
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
		case s.Is("id"):
			e.ID = s.Val
		case s.Is("created"):
			e.Created = s.Val
		case s.Is("weir_migrated"):
			e.Moved = s.Val
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
			e.readDelta(s.Val)
		case s.Is("text"):
			e.readText(s.Val)
		case s.Is("token_ids"):
			if !jsonscan.IsNull(s.Val) {
				e.IDs = s.Val
			}
		case s.Is("logprobs"):
			if jsonscan.Filled(s.Val) {
				e.Probs = s.Val
			}
		case s.Is("finish_reason"):
			if !jsonscan.IsNull(s.Val) {
				e.Finish = s.Val
			}
		}
	}
}

func (e *Event) readDelta(delta []byte) {
	s := jsonscan.Members(delta)
	for s.Next() {
		switch {
		case s.Is("content"):
			e.readText(s.Val)
		case s.Is("reasoning"), s.Is("reasoning_content"):
			e.Think = e.Think || jsonscan.Filled(s.Val)
		case s.Is("tool_calls"):
			e.Calls = jsonscan.Filled(s.Val)
		case s.Is("refusal"):
			e.Other = e.Other || jsonscan.Filled(s.Val)
		}
	}
	e.Other = e.Other || e.Think || e.Calls
	e.Token = e.Token || e.Other
}

func (e *Event) readText(val []byte) {
	if !jsonscan.Filled(val) {
		return
	}
	e.Token = true
	if val[0] == '"' {
		e.Text = val
	} else {
		e.Other = true // a list of parts
	}
}

// Failed reports whether the engine itself says that it could not finish.
func (e *Event) Failed() bool {
	return e.Fault != nil || string(e.Finish) == `"error"` || string(e.Finish) == `"abort"`
}

// Rewrite says what changes in an event or answer on its way to the client.
// Members that never leave the gateway go in any case.
type Rewrite struct {
	HideUsage, HideIDs bool // without usage; without token_ids
	HideProbs          bool // with logprobs null
	HideFinish         bool // with finish_reason null
	// In their places, where the member is there; nil leaves it.
	ID, Created, Usage []byte
}

// Append appends the object data, rewritten, to dst.
func (w *Rewrite) Append(dst, data []byte) []byte {
	s := jsonscan.Members(data)
	dst = append(dst, '{')
	first := true
	for s.Next() {
		val := s.Val
		switch {
		case s.Is("kv_transfer_params"), s.Is("ec_transfer_params"), s.Is("weir"), w.HideUsage && s.Is("usage"), w.HideIDs && s.Is("token_ids"):
			continue
		case s.Is("id") && w.ID != nil:
			val = w.ID
		case s.Is("created") && w.Created != nil:
			val = w.Created
		case s.Is("usage") && w.Usage != nil && !jsonscan.IsNull(val):
			val = w.Usage
		case s.Is("logprobs") && w.HideProbs, s.Is("finish_reason") && w.HideFinish:
			val = null
		}
		dst = appendName(dst, s.Key, &first)
		if one := jsonscan.First(val); (w.HideIDs || w.HideProbs || w.HideFinish) && one != nil && s.Is("choices") {
			dst = append(dst, '[')
			dst = (&Rewrite{HideIDs: w.HideIDs, HideProbs: w.HideProbs, HideFinish: w.HideFinish}).Append(dst, one)
			dst = append(dst, ']')
			continue
		}
		dst = append(dst, val...)
	}
	return append(dst, '}')
}

var null = []byte("null")

func appendName(dst, name []byte, first *bool) []byte {
	if !*first {
		dst = append(dst, ',')
	}
	*first = false
	dst = append(dst, '"')
	dst = append(dst, name...)
	return append(dst, '"', ':')
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
