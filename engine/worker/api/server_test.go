package api

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
)

// TestSlowBody: a client that does not send its body gets an answer and loses
// its connection.
func TestSlowBody(t *testing.T) {
	s := New(Identity{Name: "w"}, slog.New(slog.DiscardHandler), noop.NewTracerProvider().Tracer(""))
	s.bodyTimeout = 20 * time.Millisecond
	srv := httptest.NewServer(s)
	defer srv.Close()
	body, end := newStuck()
	defer end()
	req, err := http.NewRequest("POST", srv.URL+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.ContentLength = 100 // net/http looks for the rest of such a body after the handler
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 400 {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// stuck is a body that sends a little and then nothing.
type stuck struct {
	strings.Reader
	end chan struct{}
}

func newStuck() (*stuck, func()) {
	s := &stuck{*strings.NewReader(`{"model"`), make(chan struct{})}
	return s, func() { close(s.end) }
}

func (s *stuck) Read(b []byte) (int, error) {
	if s.Len() > 0 {
		return s.Reader.Read(b)
	}
	<-s.end
	return 0, http.ErrBodyReadAfterClose
}

// TestLoading: before the model is there everything but generating works.
func TestLoading(t *testing.T) {
	s := New(Identity{Name: "w", Epoch: "e", Role: "mixed"}, slog.New(slog.DiscardHandler), noop.NewTracerProvider().Tracer(""))
	for _, tt := range []struct{ method, path, body, want string }{
		{"GET", "/health", "", `"status":"loading"`},
		{"GET", "/instance/v1/info", "", `"epoch":"e"`},
		{"GET", "/metrics", "", "worker_loading"},
		{"GET", "/v1/models", "", "worker_loading"},
		{"POST", "/v1/chat/completions", "{}", "worker_loading"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.body))
		r.Header.Set("Content-Type", "application/json")
		s.ServeHTTP(w, r)
		if w.Code != 503 || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%s: %d %s", tt.path, w.Code, w.Body)
		}
	}
}
