package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// later sends a chat request beside the test. The channel is closed without an
// answer where there was none.
func (r *rig) later(t testing.TB, body string, headers ...string) <-chan reply {
	done := make(chan reply, 1)
	go func() {
		defer close(done)
		done <- r.chat(t, body, headers...)
	}()
	return done
}

// visit sends a chat request of a client that leaves when leave is called, which
// returns when it has left.
func (r *rig) visit(t testing.TB, body string) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.server.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.key)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if resp, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	t.Cleanup(cancel)
	return func() {
		cancel()
		take(t, "the client leaves", gone)
	}
}

// take returns what comes over a channel within a minute.
func take[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatalf("never happened: %s", what)
	}
	return v
}
