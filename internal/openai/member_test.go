package openai

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

var samples = map[kind]string{aString: `"s"`, aNumber: `1`, aBoolean: `true`, anObject: `{}`, aList: `[]`}

// TestMembersHaveTypes gives every member that is handed on each JSON type:
// what it may not have is refused by its name.
func TestMembersHaveTypes(t *testing.T) {
	for _, place := range []struct {
		at, format string
		members    []member
	}{
		{"", `{"model":"m","messages":[{"role":"user","content":"hi"}],%s}`, passed},
		{"messages[0].", `{"model":"m","messages":[{"role":"user","content":"hi",%s}]}`, passedInMessage},
	} {
		for _, m := range place.members {
			for k, text := range samples {
				body := fmt.Sprintf(place.format, fmt.Sprintf("%q:%s", m.name, text))
				b, err := ParseBody([]byte(body))
				if err != nil {
					t.Fatal(err)
				}
				_, err = ParseChat(b)
				var e *Error
				switch {
				case slices.Contains(m.kinds, k):
					if err != nil {
						t.Errorf("%s: %v", body, err)
					}
				case !errors.As(err, &e) || e.Param != place.at+m.name || e.Status != 400:
					t.Errorf("%s: got %v, want a refusal of %s", body, err, place.at+m.name)
				}
			}
		}
	}
}

func TestWhereJSONBreaks(t *testing.T) {
	deep := `{"model":` + strings.Repeat("[", 10001)
	for body, want := range map[string]string{
		`{"model":x}`:     "near byte 10",
		`{"a":1,}`:        "near byte 8",
		deep:              "near byte 10009",
		`{"model":"auto`:  "at byte 14",
		`{"model":"\x01"`: "near byte 12",
	} {
		if _, err := ParseBody([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s: %v, want %q", body, err, want)
		}
	}
}
