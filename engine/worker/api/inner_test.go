package api

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

// TestBeginning: what a client has seen is found in the bytes, whatever they are.
func TestBeginning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shown := rapid.SliceOf(rapid.Byte()).Draw(t, "shown")
		var text string
		if err := json.Unmarshal(appendString(nil, shown), &text); err != nil {
			t.Fatal(err)
		}
		// What follows begins with a whole character: text is cut nowhere else.
		whole := append(append([]byte{}, shown...), rapid.SampledFrom([]string{"", "a", "é"}).Draw(t, "rest")...)
		if n := beginning(whole, text); n != len(shown) {
			t.Fatalf("%d of %q, want %d", n, whole, len(shown))
		}
	})
	for text, whole := range map[string]string{"ab": "a", "b": "ab", "é": "\xc3", "�": ""} {
		if n := beginning([]byte(whole), text); n >= 0 {
			t.Errorf("%q begins %q after %d bytes", whole, text, n)
		}
	}
}
