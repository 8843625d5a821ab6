package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// canned answers every request with one stream, without a network.
type canned struct{ stream string }

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: io.NopCloser(strings.NewReader(c.stream)), Request: r}, nil
}

// nowhere is a client that takes everything.
type nowhere struct{ h http.Header }

func (n nowhere) Header() http.Header       { return n.h }
func (nowhere) WriteHeader(int)             {}
func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) Flush()                      {}

// BenchmarkStream relays streams of two lengths: the difference of their
// allocations is what 1000 tokens cost.
func BenchmarkStream(b *testing.B) {
	for _, tokens := range []int{1, 1001} {
		b.Run(fmt.Sprint(tokens), func(b *testing.B) {
			var s strings.Builder
			for range tokens {
				s.WriteString(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,"model":"big","choices":[{"index":0,"delta":{"content":"light"},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n")
			}
			s.WriteString(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,"model":"big","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n")
			r := newRig(b, func(o *Options) { o.Client = &http.Client{Transport: canned{s.String()}} }, newInstance(b, "m", "mixed"))
			b.ReportAllocs()
			for b.Loop() {
				req := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(ask1s))
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Authorization", "Bearer "+r.key)
				r.ServeHTTP(nowhere{http.Header{}}, req)
			}
		})
	}
}
