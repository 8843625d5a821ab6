package local

import (
	"encoding/json"
	"strconv"

	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
)

// frames writes an answer as the client's stream, one event a piece, into one
// buffer. The id and the time are the request's, whichever tier has the word.
type frames struct {
	c    *call
	out  *output
	head []byte // of every event, up to the choice
	buf  []byte
	role bool // the assistant's role has been sent
}

// speaks names the model of the events from here on.
func (f *frames) speaks(model string) {
	object := openai.ObjectChatChunk
	if f.c.kind == upstream.Text {
		object = openai.ObjectCompletion
	}
	name, err := json.Marshal(model)
	if err != nil {
		name = []byte(`""`) // a string always marshals
	}
	b := append(f.head[:0], `{"id":"`...)
	b = append(append(b, f.c.responseID()...), `","object":"`...)
	b = append(append(b, object...), `","created":`...)
	b = append(strconv.AppendInt(b, f.c.arrived.Unix(), 10), `,"model":`...)
	f.head = append(append(b, name...), `,"choices":[`...)
}

// piece sends what an event of the model added. It allocates nothing.
func (f *frames) piece(p *upstream.Piece) error {
	if err := f.begin(); err != nil {
		return err
	}
	b := append(append(f.buf[:0], f.head...), `{"index":0,`...)
	text := p.Text
	if text == nil {
		text = emptyText
	}
	if f.c.kind == upstream.Text {
		b = append(append(b, `"text":`...), text...)
	} else {
		b = append(append(b, `"delta":{"content":`...), text...)
		if p.Calls != nil {
			b = append(append(b, `,"tool_calls":`...), p.Calls...)
		}
		b = append(b, '}')
	}
	b = append(b, `,"logprobs":`...)
	if f.c.req.Logprobs && p.Logprobs != nil {
		b = append(b, p.Logprobs...)
	} else {
		b = append(b, "null"...)
	}
	f.buf = append(b, `,"finish_reason":null}]}`...)
	return f.out.data(f.buf)
}

var emptyText = []byte(`""`)

// begin sends the role that a chat's stream starts with.
func (f *frames) begin() error {
	if f.role || f.c.kind == upstream.Text {
		return nil
	}
	f.role = true
	f.buf = append(append(f.buf[:0], f.head...), `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`...)
	return f.out.data(f.buf)
}

// end sends the finish reason, the usage if the client asked for it, the weir
// object in the last of the two, and the end mark.
func (f *frames) end(finish string, usage *openai.Usage, weir *contract.Result) error {
	if err := f.begin(); err != nil {
		return err
	}
	part := `"delta":{}`
	if f.c.kind == upstream.Text {
		part = `"text":""`
	}
	b := append(append(f.buf[:0], f.head...), `{"index":0,`...)
	b = append(append(b, part...), `,"logprobs":null,"finish_reason":`...)
	b = append(strconv.AppendQuote(b, finish), `}]`...)
	if f.c.req.IncludeUsage {
		f.buf = append(b, '}')
		if err := f.out.data(f.buf); err != nil {
			return err
		}
		b = appendMember(append(append(f.buf[:0], f.head...), ']'), "usage", usage)
	}
	f.buf = append(appendMember(b, "weir", weir), '}')
	if err := f.out.data(f.buf); err != nil {
		return err
	}
	return f.out.done()
}

func appendMember(b []byte, name string, v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		raw = []byte("null") // plain structs marshal
	}
	b = append(append(append(b, `,"`...), name...), `":`...)
	return append(b, raw...)
}
