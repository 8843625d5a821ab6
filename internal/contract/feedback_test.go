package contract

import (
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/openai"
)

func status(err error) int {
	if e := (*openai.Error)(nil); errors.As(err, &e) {
		return e.Status
	}
	return 0
}

func TestReadFeedback(t *testing.T) {
	read := func(body, contentType string) (Feedback, error) {
		r := httptest.NewRequest(http.MethodPut, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		return ReadFeedback(r)
	}
	for body, want := range map[string]int{
		`{"score":0}`: 0, `{"score":1}`: 0, ` {"score": 0.25} `: 0, `{"sc\u006fre":0.5}`: 0,
		``: 400, `{}`: 400, `null`: 400, `[]`: 400, `0.5`: 400, `{"score":null}`: 400, `{"score":"good"}`: 400, `{"score":true}`: 400,
		`{"score":1.01}`: 400, `{"score":-0.1}`: 400, `{"score":1e999}`: 400, `{"score":1,"text":"x"}`: 400, `{"score":1} x`: 400, `{"score":1`: 400,
		`{"score":1,}`: 400, `{"score":1}}`: 400,
		`{"score":1}` + strings.Repeat(" ", maxFeedback): 413,
	} {
		if _, err := read(body, "application/json; charset=utf-8"); status(err) != want {
			t.Errorf("%.60q: %v, want %d", body, err, want)
		}
	}
	for _, contentType := range []string{"", "text/plain", "application/json; charset=utf-16"} {
		if _, err := read(`{"score":1}`, contentType); status(err) != http.StatusUnsupportedMediaType {
			t.Errorf("as %q: %v", contentType, err)
		}
	}
	if f, err := read(`{"score":-0.0}`, "application/json"); err != nil || math.Signbit(f.Score) {
		t.Errorf("%v, %v", f.Score, err)
	}
}

// A member is the score's once and exactly so spelt; the error names the one that
// is not.
func TestFeedbackMembers(t *testing.T) {
	for _, tt := range []struct{ body, param, code string }{
		{`{"score":0.5,"score":1}`, "score", openai.CodeInvalidValue},
		{`{"score":0.5,"sc\u006fre":0.5}`, "score", openai.CodeInvalidValue},
		{`{"score":null,"score":1}`, "score", openai.CodeInvalidValue},
		{`{"score":0.5,"Score":1}`, "Score", openai.CodeUnknownMember},
		{`{"SCORE":0.5}`, "SCORE", openai.CodeUnknownMember},
		{`{"score":0.5,"x":1}`, "x", openai.CodeUnknownMember},
		{`{"score":2}`, "score", openai.CodeInvalidValue},
		{`{"score":"x"}`, "score", openai.CodeInvalidValue},
		{`{}`, "score", openai.CodeMissing},
		{`{"score":1`, "", openai.CodeInvalidJSON},
	} {
		var e *openai.Error
		if _, err := ParseFeedback([]byte(tt.body)); !errors.As(err, &e) || e.Param != tt.param || e.Code != tt.code {
			t.Errorf("%s: %+v", tt.body, err)
		}
	}
}

func TestCheckScored(t *testing.T) {
	id, now := NewID(), time.Now()
	for _, tt := range []struct {
		id   string
		now  time.Time
		want int
	}{
		{id, now, 0},
		{id, now.Add(FeedbackLife - time.Minute), 0},
		{id, now.Add(FeedbackLife + time.Minute), http.StatusGone},
		{id, now.Add(-2 * time.Hour), http.StatusNotFound},
		{strings.ToUpper(id), now, http.StatusNotFound},
		{"x", now, http.StatusNotFound},
		{"6ba7b810-9dad-11d1-80b4-00c04fd430c8", now, http.StatusNotFound},
	} {
		if err := CheckScored(tt.id, tt.now); status(err) != tt.want {
			t.Errorf("%s at %s: %v, want %d", tt.id, tt.now, err, tt.want)
		}
	}
}

func FuzzParseFeedback(f *testing.F) {
	for _, s := range []string{`{"score":1}`, `{"score":"1"}`, `{"score":0.5,"x":1}`, `{"Score":2}`, `{"score":1}{}`, `{"score":1,"score":0}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := ParseFeedback(data)
		if err == nil && !(got.Score >= 0 && got.Score <= 1) {
			t.Errorf("%q is %v", data, got.Score)
		}
		if err != nil && status(err) != http.StatusBadRequest {
			t.Errorf("%q: %v", data, err)
		}
	})
}
