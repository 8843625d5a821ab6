package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/internal/jsonscan"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/ledger"
	"github.com/weirhq/weir/tenants/report"
	"github.com/weirhq/weir/tenants/store"
)

// maxBody bounds the bodies of the admin API and of joins.
const maxBody = 64 << 10

// readBody reads at most limit bytes of JSON.
func readBody(c *gin.Context, limit int64) ([]byte, error) {
	if t, _, err := mime.ParseMediaType(c.GetHeader("Content-Type")); err != nil || t != "application/json" {
		return nil, &openai.Error{Status: http.StatusUnsupportedMediaType, Type: openai.TypeInvalidRequest, Code: openai.CodeMediaType,
			Param: "Content-Type", NoRetry: true, Message: "Content-Type must be application/json"}
	}
	b, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, limit))
	var big *http.MaxBytesError
	if errors.As(err, &big) {
		return nil, &openai.Error{Status: http.StatusRequestEntityTooLarge, Type: openai.TypeInvalidRequest, Code: openai.CodeBodyTooLarge,
			NoRetry: true, Message: "the body is too large"}
	}
	if err != nil {
		return nil, openai.BadRequest("", openai.CodeInvalidJSON, "the body could not be read")
	}
	return b, nil
}

// decode reads one JSON object into v and refuses members that v does not have,
// or in other capitals, and what is there twice, so that no misspelt one is
// silently ignored and whoever reads it in the log reads the same.
func decode(c *gin.Context, v any) error {
	b, err := readBody(c, maxBody)
	if err != nil {
		return err
	}
	return decodeBytes(b, v)
}

func decodeBytes(b []byte, v any) error {
	if !utf8.Valid(b) {
		return openai.BadRequest("", openai.CodeInvalidJSON, "the body is not valid UTF-8")
	}
	if t := bytes.TrimSpace(b); len(t) == 0 || t[0] != '{' {
		return openai.BadRequest("", openai.CodeInvalidJSON, "the body must be a JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	if err == nil {
		if _, end := dec.Token(); end != io.EOF {
			err = errors.New("data after the object")
		}
	}
	if err != nil {
		return bodyError(err, b, v)
	}
	if name, twice := jsonscan.Repeated(b); twice {
		return openai.BadRequest(name, openai.CodeInvalidValue, "%s: the member is given twice", name)
	}
	if name := jsonscan.Misspelt(b, reflect.TypeOf(v)); name != "" {
		return openai.BadRequest(name, openai.CodeUnknownMember, "unknown member %q: capitals matter", name)
	}
	return nil
}

// badTime returns the member of b that should be a time and is none. The fields
// of v say which should.
func badTime(b []byte, v any) string {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(b, &members) // b is an object
	t := reflect.TypeOf(v).Elem()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		raw, given := members[name]
		if !given {
			continue
		}
		var when *time.ParseError
		if errors.As(json.Unmarshal(raw, reflect.New(t.Field(i).Type).Interface()), &when) {
			return name
		}
	}
	return ""
}

func bodyError(err error, body []byte, v any) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return openai.BadRequest(kind.Field, openai.CodeInvalidValue, "%s: want %s, not %s", kind.Field, typeName(kind), kind.Value)
	}
	var when *time.ParseError
	if errors.As(err, &when) {
		name := badTime(body, v)
		return openai.BadRequest(name, openai.CodeInvalidValue, "%s: times look like 2026-01-31T00:00:00Z", name)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		name = strings.Trim(name, `"`)
		return openai.BadRequest(name, openai.CodeUnknownMember, "unknown member %q", name)
	}
	return openai.BadRequest("", openai.CodeInvalidJSON, "the body is not valid JSON")
}

func typeName(e *json.UnmarshalTypeError) string {
	switch e.Type.Kind().String() {
	case "string":
		return "a string"
	case "bool":
		return "true or false"
	case "slice":
		return "a list"
	case "struct":
		return "an object"
	}
	return "a number in range"
}

// reply sends v as JSON.
func reply(c *gin.Context, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		openai.Internal(err).Write(c.Writer, nil)
		return
	}
	c.Writer.Header().Set("Content-Type", "application/json")
	c.Writer.WriteHeader(status)
	_, _ = c.Writer.Write(b) // the client may be gone
}

// fail sends err as an OpenAI-style error and ends the request. What is our
// own fault is logged, because the answer does not show its cause.
func (c *Control) fail(g *gin.Context, err error) {
	e := asAPIError(err)
	if e.Status >= http.StatusInternalServerError {
		c.o.Log.Warn("control request failed", "path", g.FullPath(), "status", e.Status, "error", err)
	}
	g.Abort()
	e.Write(g.Writer, nil)
}

// asAPIError says what a client may know of err. What is not known here comes
// from the database, which may be back soon.
func asAPIError(err error) *openai.Error {
	var api *openai.Error
	var field *tenants.FieldError
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &field):
		return openai.BadRequest(field.Field, openai.CodeInvalidValue, "%s: %s", field.Field, field.Problem)
	case errors.Is(err, store.ErrNotFound):
		return &openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Code: "not_found", NoRetry: true, Message: "there is no such object"}
	case errors.Is(err, store.ErrReplayDiffers):
		return &openai.Error{Status: http.StatusUnprocessableEntity, Type: openai.TypeInvalidRequest, Code: "idempotency_key_reused",
			Param: headerIdempotencyKey, NoRetry: true, Message: "the Idempotency-Key was used for a different request"}
	case errors.Is(err, store.ErrLastAdmin):
		return conflict("last_admin", store.ErrLastAdmin.Error())
	case errors.Is(err, store.ErrInUse):
		return conflict("in_use", "a key, a limit or a policy names it still")
	case errors.Is(err, store.ErrNoAudit):
		return openai.Internal(err)
	case errors.Is(err, report.ErrTooMany):
		return openai.BadRequest("bucket", openai.CodeInvalidValue, "%s", report.ErrTooMany)
	case errors.Is(err, report.ErrBadCursor):
		return openai.BadRequest("after", openai.CodeInvalidValue, "after is not a cursor of this list")
	case errors.Is(err, store.ErrExists):
		return &openai.Error{Status: http.StatusConflict, Type: openai.TypeInvalidRequest, Code: "exists", NoRetry: true, Message: "an object of that name exists already"}
	case errors.Is(err, ledger.ErrBadRow):
		return openai.BadRequest("rows", openai.CodeInvalidValue, "a row cannot be written to the ledger")
	}
	e := openai.Unavailable("database_unavailable", 2*time.Second, "the database is away: try again")
	e.Cause = err
	return e
}

func conflict(code, message string) *openai.Error {
	return &openai.Error{Status: http.StatusConflict, Type: openai.TypeInvalidRequest, Code: code, NoRetry: true, Message: message}
}
