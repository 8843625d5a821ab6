// Package openai holds the wire types of the OpenAI-compatible API that
// applications, edge nodes, gateways and workers share: requests with checks
// that name the member at fault, responses, stream chunks and error bodies.
package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/weirhq/weir/internal/jsonscan"
)

// MaxBody is the largest request body that any role reads, in bytes. A 10 MB
// prompt is read and then refused by the model's context, with a clear error.
const MaxBody = 32 << 20

// Body is a JSON object whose members stay as the client wrote them: what Weir
// does not know passes through untouched.
type Body map[string]json.RawMessage

// BoundBody gives the client d to send its request's body. It is for the entry
// of a server, before anything may refuse the request: net/http looks for the
// rest of a body that nobody has read before it sends the answer. A server's
// ReadTimeout is no substitute: it goes on running while an answer is made, and
// ends its context.
func BoundBody(w http.ResponseWriter, r *http.Request, d time.Duration) {
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d)) // not every writer can
	}
}

// UnboundBody ends what BoundBody began, once the body has been read to its end.
func UnboundBody(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
}

// ReadBody reads a request's JSON object. It refuses other content types (415),
// bodies over MaxBody (413), malformed JSON, anything but an object and an object
// that has a member twice, at whatever depth (400): readers differ in which of
// the two they take.
func ReadBody(r *http.Request) (Body, error) {
	if ct := r.Header.Get("Content-Type"); ct != "" || r.ContentLength != 0 {
		mt, _, err := mime.ParseMediaType(ct)
		if err != nil || mt != "application/json" {
			return nil, &Error{Status: http.StatusUnsupportedMediaType, Type: TypeInvalidRequest, Code: CodeMediaType,
				Param: "Content-Type", Message: "send the request as application/json", NoRetry: true}
		}
	}
	if r.ContentLength > 2*MaxBody {
		return nil, tooLarge()
	}
	data, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, MaxBody))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		// Most clients read no answer before they have sent all; without this
		// they would see a broken connection.
		_, _ = io.CopyN(io.Discard, r.Body, MaxBody)
		return nil, tooLarge()
	case err != nil:
		return nil, &Error{Status: http.StatusBadRequest, Type: TypeInvalidRequest, Code: CodeInvalidJSON,
			Message: "the body could not be read to its end", Cause: err}
	}
	b, err := ParseBody(data)
	if err == nil {
		err = once(data)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

func once(data []byte) error {
	if path, twice := jsonscan.Repeated(data); twice {
		return BadRequest(clip(path), CodeInvalidValue, "%s is given more than once", clip(path))
	}
	return nil
}

func tooLarge() *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Type: TypeInvalidRequest, Code: CodeBodyTooLarge,
		Message: fmt.Sprintf("the body is larger than %d bytes", MaxBody), NoRetry: true}
}

// ParseBody parses a JSON object.
func ParseBody(data []byte) (Body, error) {
	if !utf8.Valid(data) {
		return nil, BadRequest("", CodeInvalidJSON, "the body is not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	var b Body
	err := dec.Decode(&b)
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrong):
		return nil, BadRequest("", CodeInvalidJSON, "the body must be a JSON object")
	case errors.Is(err, io.EOF):
		return nil, BadRequest("", CodeInvalidJSON, "the body is empty: send a JSON object")
	case errors.As(err, &syntax):
		return nil, BadRequest("", CodeInvalidJSON, "the body is not valid JSON near byte %d: %s", syntax.Offset, syntax)
	case err != nil:
		return nil, BadRequest("", CodeInvalidJSON, "the body ends within its JSON object, at byte %d", len(data))
	case b == nil:
		return nil, BadRequest("", CodeInvalidJSON, "the body must be a JSON object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, BadRequest("", CodeInvalidJSON, "the body has text after the JSON object")
	}
	return b, nil
}

// Set stores v as member name. v must marshal.
func (b Body) Set(name string, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("openai: member %s: %v", name, err))
	}
	b[name] = raw
}

// Clone copies the object, not the members' bytes.
func (b Body) Clone() Body {
	c := make(Body, len(b)+4)
	for k, v := range b {
		c[k] = v
	}
	return c
}

// JSON returns the object with its members in alphabetical order.
func (b Body) JSON() []byte {
	data, err := json.Marshal(map[string]json.RawMessage(b))
	if err != nil { // members came from a parsed object or from Set
		panic(fmt.Sprintf("openai: marshal body: %v", err))
	}
	return data
}

// Inner lists the members that only the inside of Weir may say (protocols.md
// 1.2): they name hosts, KV blocks or scheduling of other requests.
var Inner = []string{
	"kv_transfer_params", "ec_transfer_params", "disaggregated_params",
	"bootstrap_host", "bootstrap_port", "bootstrap_room",
	"priority", "request_id", "session_id", "cache_salt", "weir_resume",
}

// StripInner removes the members of Inner and returns the names removed.
func (b Body) StripInner() []string {
	var gone []string
	for _, name := range Inner {
		if _, ok := b[name]; ok {
			delete(b, name)
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	return gone
}
