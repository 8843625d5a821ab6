package api

import (
	"encoding/json"

	"github.com/weirhq/weir/engine/worker/loop"
)

// migrated is the value of weir_migrated: what the gateway adds to the request
// that it sends to another worker. KV is absent where there was no room to offer
// it; then the other worker computes all tokens.
type migrated struct {
	KV     json.RawMessage `json:"kv_transfer_params,omitempty"`
	Resume resumption      `json:"weir_resume"`
}

// leave describes how a migrated answer goes on elsewhere.
func (c *call) leave(r loop.Result) []byte {
	text := c.m.Pieces.Text(r.Generated)
	m := migrated{KV: c.offer(r.Handoff), Resume: resumption{Text: string(text[:len(text)-r.Unshown]), Tokens: r.Generated}}
	data, err := json.Marshal(m)
	if err != nil { // plain fields
		panic(err)
	}
	return data
}

// migrated is the last event of a stream that goes on elsewhere.
func (st *streaming) migrated() error {
	data := append([]byte(`{"weir_migrated":`), st.c.leave(st.c.result)...)
	st.c.result.Handoff = nil
	return st.data(append(data, '}'))
}
