// Package embedtest is a server that speaks OpenAI's embeddings API, for the tests
// of the edge. Prompts with a word in common get similar vectors.
package embedtest

import (
	"encoding/json"
	"hash/fnv"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Dimension is the length of its vectors.
const Dimension = 16

// Server is a running test server.
type Server struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string
	keys []string
	hang chan struct{} // when set, answers wait for it
	fail bool
}

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	s := &Server{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/embeddings", s.serve)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// Endpoint is the URL to configure.
func (s *Server) Endpoint() string { return s.URL + "/v1/embeddings" }

// Hang makes answers wait until gate is closed; nil ends that.
func (s *Server) Hang(gate chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hang = gate
}

// Fail makes answers errors, or ends that.
func (s *Server) Fail(fail bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// Seen returns the texts and the Authorization headers so far.
func (s *Server) Seen() (texts, keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...), append([]string(nil), s.keys...)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		Model    string
		Input    string
		Encoding string `json:"encoding_format"`
	}
	if json.NewDecoder(r.Body).Decode(&ask) != nil || ask.Model == "" || ask.Encoding != "float" {
		http.Error(w, `{"error":{"message":"bad request"}}`, http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.seen, s.keys = append(s.seen, ask.Input), append(s.keys, r.Header.Get("Authorization"))
	hang, fail := s.hang, s.fail
	s.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-r.Context().Done():
			return
		}
	}
	if fail {
		http.Error(w, `{"error":{"message":"overloaded"}}`, http.StatusServiceUnavailable)
		return
	}
	item := map[string]any{"object": "embedding", "index": 0, "embedding": vector(ask.Input)}
	_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": []any{item}, "model": ask.Model, "usage": map[string]int{"prompt_tokens": 1, "total_tokens": 1}})
}

// vector is the direction of the text's words, of which long ones count most.
func vector(text string) []float64 {
	v := make([]float64, Dimension)
	v[0] = .01
	for _, word := range strings.Fields(text) {
		h := fnv.New32a()
		_, _ = h.Write([]byte(word))
		v[h.Sum32()%Dimension] += math.Pow(float64(len(word)), 3)
	}
	return v
}
