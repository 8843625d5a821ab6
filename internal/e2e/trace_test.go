package e2e

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/weirhq/weir/internal/client"
)

// spanSink is an OTLP receiver that remembers which services took part in each
// trace.
type spanSink struct {
	mu     sync.Mutex
	traces map[string]map[string]int // trace id -> "service/instance" -> spans
}

func (s *spanSink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	data, err := io.ReadAll(io.LimitReader(body, 16<<20))
	var req collector.ExportTraceServiceRequest
	if err != nil || proto.Unmarshal(data, &req) != nil {
		http.Error(w, "not OTLP", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range req.GetResourceSpans() {
		name := ""
		for _, a := range rs.GetResource().GetAttributes() {
			switch a.GetKey() {
			case "service.name":
				name = a.GetValue().GetStringValue() + name
			case "service.instance.id":
				name += "/" + a.GetValue().GetStringValue()
			}
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, span := range ss.GetSpans() {
				id := string(span.GetTraceId())
				if s.traces[id] == nil {
					s.traces[id] = map[string]int{}
				}
				s.traces[id][name]++
			}
		}
	}
}

// spanned returns the services of the trace with the most of them.
func (s *spanSink) spanned() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var best map[string]int
	for _, services := range s.traces {
		if len(services) > len(best) {
			best = services
		}
	}
	return best
}

// TestOneTraceFromEdgeToWorker escalates a request and looks for one trace
// that holds the edge, its worker, the cloud and both of the cloud's workers.
func TestOneTraceFromEdgeToWorker(t *testing.T) {
	sink := &spanSink{traces: map[string]map[string]int{}}
	srv := httptest.NewServer(sink)
	defer srv.Close()
	s, err := startWith(t.TempDir(), []string{"WEIR_EDGE_OTLP_ENDPOINT=" + srv.URL, "WEIR_CLOUD_OTLP_ENDPOINT=" + srv.URL, "WEIR_WORKER_OTLP_ENDPOINT=" + srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	c := &client.Client{URL: s.EdgeURL, Key: s.AppKey, HTTP: http.DefaultClient}
	a, err := c.Chat(t.Context(), client.Request{Prompt: "reverse the word umbrella"}, nil)
	if err != nil || a.Weir.Tier != "cloud" {
		t.Fatalf("not escalated: %+v, %v", a, err)
	}
	defer func() {
		if t.Failed() {
			t.Logf("the widest trace: %v", sink.spanned())
		}
	}()
	eventually(t, "one trace spans all five processes", 30*time.Second, func() bool { return len(sink.spanned()) >= 5 })
}
