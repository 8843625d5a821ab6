package openai

import (
	"net/http"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		ms, after string
		want      time.Duration
	}{
		{"", "", 0}, {"", "7", 7 * time.Second}, {"250", "1", 250 * time.Millisecond}, {"x", "2", 2 * time.Second}, {"", "-3", 0}, {"-1", "", 0},
		{"", "soon", 0}, {"", "99999999999999999999", 0}, {"", "Mon, 30 Nov 2026 12:00:05 GMT", 5 * time.Second}, {"", "Mon, 30 Nov 2026 11:00:00 GMT", 0},
	} {
		h := http.Header{"Retry-After-Ms": {tt.ms}, "Retry-After": {tt.after}}
		if got := RetryAfter(h, now); got != tt.want {
			t.Errorf("%q %q: %s, want %s", tt.ms, tt.after, got, tt.want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "7", "-1", "1e3", "Mon, 30 Nov 2026 12:00:05 GMT", "99999999999"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, ms, after string) {
		h := http.Header{"Retry-After-Ms": {ms}, "Retry-After": {after}}
		if d := RetryAfter(h, time.Unix(0, 0)); d < 0 {
			t.Errorf("%q %q: %s", ms, after, d)
		}
	})
}
