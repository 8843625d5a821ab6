package local_test

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/testproc"
)

// instant is a local model that has its answer already.
type instant struct{ stream string }

func (i instant) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(strings.NewReader(i.stream)), Request: r}, nil
}

// instantModel answers at once with so many sure tokens.
func instantModel(tokens int) *upstream.Worker {
	var b strings.Builder
	for range tokens {
		b.WriteString(`data: {"id":"w","object":"chat.completion.chunk","created":1,"model":"hub-edge","choices":[{"index":0,"delta":{"content":"word "},` +
			`"logprobs":{"content":[{"token":"word ","logprob":-0.001,"bytes":[],"top_logprobs":[]}],"refusal":null},"finish_reason":null}]}` + "\n\n")
	}
	b.WriteString(`data: {"id":"w","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n")
	return &upstream.Worker{HTTP: &http.Client{Transport: instant{b.String()}}, URL: "http://127.0.0.1", FirstByte: time.Minute, Stall: time.Minute}
}

// A token of a stream costs no allocation on its whole way through the node,
// once it is shown as it comes.
func TestStreamsDoNotAllocatePerToken(t *testing.T) {
	if testproc.Race {
		t.Skip("the race detector allocates too")
	}
	allocs := func(tokens int) float64 {
		var handler http.Handler
		n := startStreaming(t, func(o *local.Options) {
			o.Generator = instantModel(tokens)
			srv, err := local.New(*o)
			if err != nil {
				t.Fatal(err)
			}
			handler = srv.Handler()
			o.Telemetry = newTelemetry(t)
		})
		key := "Bearer " + n.cloud.Key.Reveal()
		ask := func() {
			r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/v1/chat/completions", strings.NewReader(`{"model":"auto","stream":true,`+hello+`}`))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Authorization", key)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"tier":"edge"`) {
				t.Fatal(w.Body)
			}
		}
		least := math.Inf(1)
		for range 5 { // the rest of the node allocates meanwhile, the more the longer a run takes
			least = min(least, testing.AllocsPerRun(4, ask))
		}
		return least
	}
	few, many := allocs(100), allocs(2100)
	if perToken := (many - few) / 2000; perToken > .5 {
		t.Errorf("%v allocations a token: %v for 100 tokens, %v for 2100", perToken, few, many)
	}
}

// BenchmarkAgent is what an edge node adds to a request of its local model:
// key check, parsing, decision, contract, accounting. judged against not.
func BenchmarkAgent(b *testing.B) {
	for _, mode := range []string{"auto", "edge-only"} {
		b.Run(mode, func(b *testing.B) {
			var handler http.Handler
			n := startNode(b, func(o *local.Options) {
				o.Generator = instantModel(16)
				srv, err := local.New(*o)
				if err != nil {
					b.Fatal(err)
				}
				handler = srv.Handler()
				// startNode makes a server of its own with a registry of its own.
				o.Telemetry = newTelemetry(b)
			})
			key := "Bearer " + n.cloud.Key.Reveal()
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/v1/chat/completions", strings.NewReader(`{"model":"auto",`+hello+`}`))
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Authorization", key)
				r.Header.Set("X-Weir-Mode", mode)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					b.Fatal(w.Body)
				}
			}
		})
	}
}
