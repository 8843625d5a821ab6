package gateway

import (
	"strings"
	"testing"

	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/internal/form"
	"github.com/weirhq/weir/internal/openai"
)

// A check of a stream does not allocate for each token, and reads what was said of
// events whose memory is long another's.
func TestFormCheckOfAStream(t *testing.T) {
	asked, err := form.Parse(openai.Body{"response_format": []byte(`{"type":"json_object"}`)})
	if err != nil {
		t.Fatal(err)
	}
	const tokens = 4000
	var c *choice
	feed := func(piece string) {
		c = &choice{check: &formCheck{form: cascading.Form{Stream: true, Form: asked}}}
		buf := make([]byte, 0, 256)
		for i := range tokens {
			text := piece
			if i == 0 {
				text = `{\"a\":\"`
			}
			if i == tokens-1 {
				text = `\"}`
			}
			buf = append(buf[:0], `{"choices":[{"delta":{"content":"`...)
			buf = append(append(buf, text...), `"},"finish_reason":null}]}`...)
			c.event(buf)
		}
	}
	if n := testing.AllocsPerRun(5, func() { feed("x ") }); n > tokens/10 {
		t.Errorf("%v allocations for %d tokens", n, tokens)
	}
	for _, tt := range []struct {
		piece  string
		broken bool
	}{{"x ", false}, {`\"`, true}} {
		if feed(tt.piece); c.check == nil {
			t.Fatal("the answer is not checked")
		}
		if checked, broken := c.check.found(tokens); !checked || broken != tt.broken {
			t.Errorf("%s: checked %v, broken %v", tt.piece, checked, broken)
		}
	}
	feed("x ")
	if c.event([]byte(strings.Repeat("x", maxChecked))); c.check != nil {
		t.Error("an answer beyond the bound is checked")
	}
}
