package local_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/openai"
)

// instant is a local model that has its answer already.
type instant struct{ d upstream.Draft }

func (i *instant) Generate(context.Context, upstream.Kind, openai.Body, http.Header) (*upstream.Draft, error) {
	return &i.d, nil
}

// BenchmarkAgent is what an edge node adds to a request of its local model:
// key check, parsing, decision, contract, accounting. judged against not.
func BenchmarkAgent(b *testing.B) {
	for _, mode := range []string{"auto", "edge-only"} {
		b.Run(mode, func(b *testing.B) {
			var handler http.Handler
			n := startNode(b, func(o *local.Options) {
				d := upstream.Draft{Text: "from the edge", Finish: "stop"}
				d.Signals.Usable, d.Signals.Tokens, d.Signals.SumLogProb = true, 4, -.004
				o.Generator = &instant{d}
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
