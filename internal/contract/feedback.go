package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/internal/openai"
)

const (
	// maxFeedback bounds the body of feedback, bytes.
	maxFeedback = 4 << 10
	// FeedbackLife is for how long an answer may be scored.
	FeedbackLife = 7 * 24 * time.Hour
	// clockSkew is by how much a device's clock may be ahead.
	clockSkew = time.Hour
)

// Feedback is the body of PUT /v1/weir/requests/{id}/feedback.
type Feedback struct {
	Score float64 `json:"score"` // of the answer: 0 is useless, 1 is right
}

// ReadFeedback reads and checks the body. The error is an *openai.Error.
func ReadFeedback(r *http.Request) (Feedback, error) {
	if mt, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mt != "application/json" {
		return Feedback{}, &openai.Error{Status: http.StatusUnsupportedMediaType, Type: openai.TypeInvalidRequest, Code: openai.CodeMediaType,
			Param: "Content-Type", Message: "send the score as application/json", NoRetry: true}
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxFeedback+1))
	switch {
	case err != nil:
		return Feedback{}, openai.BadRequest("", openai.CodeInvalidJSON, "the body could not be read to its end")
	case len(data) > maxFeedback:
		return Feedback{}, &openai.Error{Status: http.StatusRequestEntityTooLarge, Type: openai.TypeInvalidRequest, Code: openai.CodeBodyTooLarge,
			Message: fmt.Sprintf("the body is larger than %d bytes", maxFeedback), NoRetry: true}
	}
	return ParseFeedback(data)
}

// ParseFeedback reads {"score": 0..1}: a number and nothing else. The error is an
// *openai.Error that names the member.
func ParseFeedback(data []byte) (Feedback, error) {
	var f struct {
		Score *float64 `json:"score"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(&f)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field == "score":
		return Feedback{}, badScore()
	case err != nil:
		return Feedback{}, openai.BadRequest("", openai.CodeInvalidJSON, `the body must be {"score": number} and nothing else`)
	case f.Score == nil:
		return Feedback{}, openai.BadRequest("score", openai.CodeMissing, "score is missing: send a number from 0 to 1")
	case !(*f.Score >= 0 && *f.Score <= 1):
		return Feedback{}, badScore()
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Feedback{}, openai.BadRequest("", openai.CodeInvalidJSON, "the body has text after the JSON object")
	}
	return Feedback{*f.Score}, nil
}

func badScore() *openai.Error {
	return openai.BadRequest("score", openai.CodeInvalidValue, "score must be a number from 0 to 1")
}

// CheckScored refuses what cannot be scored any more, or never could: the time
// stands in the id itself. The error is an *openai.Error.
func CheckScored(id string, now time.Time) error {
	u, err := uuid.Parse(id)
	if _, bad := ParseID(id); err != nil || bad != nil {
		return UnknownRequest()
	}
	sec, nsec := u.Time().UnixTime()
	switch age := now.Sub(time.Unix(sec, nsec)); {
	case age > FeedbackLife:
		return &openai.Error{Status: http.StatusGone, Type: openai.TypeInvalidRequest, Code: "feedback_too_late", Param: "id", NoRetry: true,
			Message: "answers can be scored for 7 days"}
	case age < -clockSkew:
		return UnknownRequest()
	}
	return nil
}

// UnknownRequest says that nobody remembers a request; another tenant's is as
// unknown as one that never was.
func UnknownRequest() *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Code: "request_not_found", Param: "id", NoRetry: true,
		Message: "no such request of yours is remembered"}
}
