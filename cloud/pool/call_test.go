package pool

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/openai"
)

func TestCall(t *testing.T) {
	answer, status := `{"n":3}`, http.StatusOK
	var got string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.URL.Path + " " + string(b)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	p, err := New(Options{Client: s.Client(), Members: []Member{{Name: "a", URL: s.URL, Model: "m"}, {Name: "gone", URL: "http://127.0.0.1:1", Model: "m"}}})
	if err != nil {
		t.Fatal(err)
	}
	call := func(name string) (n int, code int) {
		var out struct{ N int }
		err := p.Call(t.Context(), name, http.MethodPost, "/x", map[string]int{"a": 1}, &out)
		var e *openai.Error
		if errors.As(err, &e) {
			return out.N, e.Status
		}
		if errors.Is(err, ErrUnknown) {
			return 0, -1
		}
		return out.N, 0
	}
	if n, code := call("a"); n != 3 || code != 0 || got != `POST /x {"a":1}` {
		t.Errorf("%d, %d, %s", n, code, got)
	}
	for _, tt := range []struct {
		name, answer string
		status, want int
	}{
		{"a", `{"error":{"message":"no"}}`, 404, 404}, {"a", `{"error":{"message":"no"}}`, 409, 409},
		{"a", `{"error":{"message":"no"}}`, 401, 502}, {"a", "oops", 500, 502}, {"a", "{", 200, 502},
		{"gone", "", 0, 502}, {"nobody", "", 0, -1},
	} {
		answer, status = tt.answer, tt.status
		if _, code := call(tt.name); code != tt.want {
			t.Errorf("%+v: %d", tt, code)
		}
	}
	answer, status = `{"error":{"message":"not here"}}`, 404
	for epoch, want := range map[string]string{"": "instance a is no Weir worker", "e": "not here"} {
		p.find("a").epoch = epoch
		if err := p.Call(t.Context(), "a", http.MethodPost, "/x", nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("epoch %q: %v, want %q", epoch, err, want)
		}
	}
}
