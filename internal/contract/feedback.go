package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strings"
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
	mt, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if charset := params["charset"]; err != nil || mt != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return Feedback{}, &openai.Error{Status: http.StatusUnsupportedMediaType, Type: openai.TypeInvalidRequest, Code: openai.CodeMediaType,
			Param: "Content-Type", Message: "send the score as application/json in UTF-8", NoRetry: true}
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

// ParseFeedback reads {"score": 0..1}: a number and nothing else, once and spelt
// so, that whoever reads the body beside Weir reads the same. The error is an
// *openai.Error that names the member.
func ParseFeedback(data []byte) (Feedback, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return Feedback{}, badBody()
	}
	var score *float64
	for given := false; dec.More(); given = true {
		switch name, err := dec.Token(); {
		case err != nil:
			return Feedback{}, badBody()
		case name != "score":
			return Feedback{}, openai.BadRequest(fmt.Sprint(name), openai.CodeUnknownMember, "unknown member %q", name)
		case given:
			return Feedback{}, openai.BadRequest("score", openai.CodeInvalidValue, "score: the member is given twice")
		}
		var wrong *json.UnmarshalTypeError
		switch err := dec.Decode(&score); {
		case errors.As(err, &wrong):
			return Feedback{}, badScore()
		case err != nil:
			return Feedback{}, badBody()
		}
	}
	if _, err := dec.Token(); err != nil { // its end
		return Feedback{}, badBody()
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Feedback{}, openai.BadRequest("", openai.CodeInvalidJSON, "the body has text after the JSON object")
	}
	switch {
	case score == nil:
		return Feedback{}, openai.BadRequest("score", openai.CodeMissing, "score is missing: send a number from 0 to 1")
	case !(*score >= 0 && *score <= 1):
		return Feedback{}, badScore()
	}
	return Feedback{math.Abs(*score)}, nil // -0 is 0
}

func badBody() *openai.Error {
	return openai.BadRequest("", openai.CodeInvalidJSON, `the body must be {"score": number} and nothing else`)
}

func badScore() *openai.Error {
	return openai.BadRequest("score", openai.CodeInvalidValue, "score must be a number from 0 to 1")
}

// CheckScored refuses what cannot be scored any more, or never could: the time
// stands in the id itself. The error is an *openai.Error.
func CheckScored(id string, now time.Time) error {
	if canonical, err := ParseID(id); err != nil || canonical != id { // as X-Request-Id gave it
		return UnknownRequest()
	}
	u := uuid.MustParse(id)
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
