package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
)

// Values of Error.Type, as OpenAI's clients know them.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeAuthentication = "authentication_error"
	TypePermission     = "permission_error"
	TypeNotFound       = "not_found_error"
	TypeRateLimit      = "rate_limit_error"
	TypeQuota          = "insufficient_quota"
	TypeServer         = "server_error"
	TypeUnavailable    = "service_unavailable"
)

// Values of Error.Code that more than one role uses.
const (
	CodeInvalidKey      = "invalid_api_key"
	CodeModelNotFound   = "model_not_found"
	CodeContextLength   = "context_length_exceeded"
	CodeInvalidValue    = "invalid_value"
	CodeUnsupported     = "unsupported_parameter"
	CodeUnknownMember   = "unknown_parameter"
	CodeMissing         = "missing_required_parameter"
	CodeBodyTooLarge    = "request_too_large"
	CodeInvalidJSON     = "invalid_json"
	CodeQuotaExhausted  = "quota_exhausted"
	CodeUpstream        = "upstream_error"
	CodeUpstreamCut     = "upstream_truncated"
	CodeNoInstance      = "no_instance_available"
	CodeDeadline        = "deadline_exceeded"
	CodeMediaType       = "unsupported_media_type"
	CodeInternal        = "internal_error"
	CodeForbiddenOrigin = "forbidden_origin"
)

// Error is an error of the API: an HTTP status and the members of the nested
// OpenAI error body. It is the only error that handlers show to clients.
type Error struct {
	Status  int
	Type    string
	Code    string
	Param   string // the request member or header at fault, "" when none is
	Message string
	// RetryAfter is sent as Retry-After and Retry-After-Ms when positive.
	RetryAfter time.Duration
	// NoRetry tells OpenAI's SDKs not to retry (x-should-retry: false).
	NoRetry bool
	// Cause is for the log. It is never sent.
	Cause error
}

func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%d %s: %s: %v", e.Status, e.Code, e.Message, e.Cause)
	}
	return fmt.Sprintf("%d %s: %s", e.Status, e.Code, e.Message)
}

func (e *Error) Unwrap() error { return e.Cause }

// BadRequest is a 400 that names the member param.
func BadRequest(param, code, format string, a ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: TypeInvalidRequest, Code: code, Param: param,
		Message: fmt.Sprintf(format, a...), NoRetry: true}
}

// Unauthorized is the 401 for a missing, malformed, unknown or ended key. The
// message never tells which, nor repeats the key.
func Unauthorized(message string) *Error {
	return &Error{Status: http.StatusUnauthorized, Type: TypeAuthentication, Code: CodeInvalidKey, Message: message, NoRetry: true}
}

// ModelNotFound is the 404 for a model that is unknown here or not allowed.
func ModelNotFound(model string) *Error {
	return &Error{Status: http.StatusNotFound, Type: TypeNotFound, Code: CodeModelNotFound, Param: "model", NoRetry: true,
		Message: fmt.Sprintf("the model %q does not exist or is not allowed for this key: GET /v1/models lists what is", clip(model))}
}

// Unavailable is a 503 with a time after which a retry makes sense.
func Unavailable(code string, retry time.Duration, format string, a ...any) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeUnavailable, Code: code,
		Message: fmt.Sprintf(format, a...), RetryAfter: retry}
}

// Internal is a 500. Its message says nothing of the cause, which is logged.
func Internal(cause error) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: CodeInternal,
		Message: "internal error: the operator finds it in the log under this request's id", Cause: cause}
}

// AsError returns err as an *Error, wrapping anything else as Internal.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Internal(err)
}

type errorBody struct {
	Error errorMembers `json:"error"`
	Weir  any          `json:"weir,omitempty"`
}

type errorMembers struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// Body returns the nested error body as JSON. weir, when not nil, becomes the
// body's weir object.
func (e *Error) Body(weir any) []byte {
	m := errorMembers{Message: e.Message, Type: e.Type}
	if e.Param != "" {
		m.Param = &e.Param
	}
	if e.Code != "" {
		m.Code = &e.Code
	}
	b, err := json.Marshal(errorBody{Error: m, Weir: weir})
	if err != nil { // weir objects are plain structs
		panic(fmt.Sprintf("openai: marshal error body: %v", err))
	}
	return b
}

// Write sends err as an OpenAI error response with its retry headers.
func (e *Error) Write(w http.ResponseWriter, weir any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		SetRetryAfter(h, e.RetryAfter)
	}
	if e.NoRetry {
		h.Set("X-Should-Retry", "false")
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(e.Body(weir)) // the client may be gone
}

// SetRetryAfter sets Retry-After (whole seconds, rounded up) and
// Retry-After-Ms.
func SetRetryAfter(h http.Header, d time.Duration) {
	h.Set("Retry-After", strconv.Itoa(int(math.Ceil(d.Seconds()))))
	h.Set("Retry-After-Ms", strconv.FormatInt(int64(math.Ceil(float64(d)/1e6)), 10))
}

// RetryAfter reads what SetRetryAfter sets, or Retry-After as a date: how long
// to wait from now on, 0 where nothing legible is said.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseInt(h.Get("Retry-After-Ms"), 10, 32); err == nil {
		return time.Duration(max(ms, 0)) * time.Millisecond
	}
	text := h.Get("Retry-After")
	if s, err := strconv.ParseInt(text, 10, 32); err == nil {
		return time.Duration(max(s, 0)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// ParseError reads an upstream's error body in any of the forms seen in the
// wild: nested, flat, text or HTML; code as string, number or null. status is
// the response's status. It never fails: an unreadable body becomes a generic
// message. The upstream's text reaches clients only for status 4xx.
func ParseError(status int, body []byte) *Error {
	e := &Error{Status: status, Type: typeOf(status), Code: CodeUpstream}
	var raw struct {
		Error   json.RawMessage `json:"error"`
		Object  string          `json:"object"`
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Param   any             `json:"param"`
		Code    any             `json:"code"`
	}
	var nested struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Param   any    `json:"param"`
		Code    any    `json:"code"`
	}
	if json.Unmarshal(body, &raw) == nil {
		nested.Message, nested.Type, nested.Param, nested.Code = raw.Message, raw.Type, raw.Param, raw.Code
		if raw.Error != nil && json.Unmarshal(raw.Error, &nested) != nil {
			_ = json.Unmarshal(raw.Error, &nested.Message) // Ollama: {"error":"text"}
		}
	}
	if nested.Message == "" {
		nested.Message = fmt.Sprintf("the model server answered %d %s", status, http.StatusText(status))
	}
	e.Message = clip(nested.Message)
	if s, ok := nested.Param.(string); ok {
		e.Param = clip(s)
	}
	if s, ok := nested.Code.(string); ok && s != "" {
		e.Code = clip(s)
	}
	if status >= 400 && status < 500 && nested.Type != "" {
		e.Type = clip(nested.Type)
	}
	return e
}

func typeOf(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return TypeAuthentication
	case status == http.StatusForbidden:
		return TypePermission
	case status == http.StatusNotFound:
		return TypeNotFound
	case status == http.StatusTooManyRequests:
		return TypeRateLimit
	case status >= 400 && status < 500:
		return TypeInvalidRequest
	case status == http.StatusServiceUnavailable:
		return TypeUnavailable
	}
	return TypeServer
}

// clip bounds foreign text that is repeated in an answer.
func clip(s string) string {
	const most = 500
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
