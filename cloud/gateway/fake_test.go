package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// instanceFake is a model server whose behaviour a test scripts leg by leg. It
// speaks vLLM's two-step protocol.
type instanceFake struct {
	*httptest.Server
	name, role, model string
	pool              string // "": model is its name
	weights           string // of the fingerprint; "" has none
	words             []string
	handle            atomic.Int64
	prefills, decodes atomic.Int64
	cancelled         atomic.Int64
	sick              atomic.Bool // it says that it cannot serve

	mu     sync.Mutex
	hook   func(w http.ResponseWriter, r *http.Request, body map[string]any) bool // true: it has answered
	bodies []map[string]any
	heads  []http.Header
}

func newInstance(t testing.TB, name, role string) *instanceFake {
	f := &instanceFake{name: name, role: role, model: "big", words: []string{"the ", "light ", "is ", "on"}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() { f.CloseClientConnections(); f.Close() })
	return f
}

// on sets what happens to requests from now on; nil is normal service.
func (f *instanceFake) on(hook func(w http.ResponseWriter, r *http.Request, body map[string]any) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

func (f *instanceFake) last() (map[string]any, http.Header) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.bodies) == 0 {
		return nil, nil
	}
	return f.bodies[len(f.bodies)-1], f.heads[len(f.heads)-1]
}

func (f *instanceFake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		if f.sick.Load() {
			http.Error(w, "sick", http.StatusServiceUnavailable)
			return
		}
		print := "null"
		if f.weights != "" {
			print = fmt.Sprintf(`{"weights":%q,"runner":"r","kv":"k"}`, f.weights)
		}
		fmt.Fprintf(w, `{"status":"ok","name":%q,"epoch":"e-%s","role":%q,"model":%q,"context":2048,"max_seqs":8,"fingerprint":%s}`, f.name, f.name, f.role, f.model, print)
		return
	}
	data, _ := io.ReadAll(r.Body)
	var body map[string]any
	if err := json.Unmarshal(data, &body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	f.bodies, f.heads = append(f.bodies, body), append(f.heads, r.Header.Clone())
	hook := f.hook
	f.mu.Unlock()
	if hook != nil && hook(w, r, body) {
		return
	}
	kv, _ := body["kv_transfer_params"].(map[string]any)
	if kv["do_remote_decode"] == true {
		f.prefills.Add(1)
		f.answerPrefill(w)
		return
	}
	f.decodes.Add(1)
	if body["stream"] == true {
		f.stream(w, r, body, len(f.words))
		return
	}
	f.whole(w, r)
}

func (f *instanceFake) answerPrefill(w http.ResponseWriter) {
	fmt.Fprintf(w, `{"id":"p","object":"chat.completion","created":1,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length","logprobs":null}],`+
		`"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e","remote_request_id":"h%d","remote_block_ids":[[1,2]],"remote_host":"127.0.0.1","remote_port":1}}`,
		f.model, f.handle.Add(1))
}

func (f *instanceFake) whole(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/completions" {
		fmt.Fprintf(w, `{"id":"c","object":"text_completion","created":1,"model":%q,"choices":[{"index":0,"text":"the light is on","finish_reason":"stop","logprobs":null}],"usage":{"prompt_tokens":7,"completion_tokens":4,"total_tokens":11}}`, f.model)
		return
	}
	fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"the light is on","refusal":null},"finish_reason":"stop",`+
		`"logprobs":{"content":[{"token":"the","logprob":-0.1,"bytes":[116],"top_logprobs":[]}],"refusal":null}}],"usage":{"prompt_tokens":7,"completion_tokens":4,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":2}},"kv_transfer_params":null}`, f.model)
}

// stream sends the first n words, and the end of the stream if those are all.
func (f *instanceFake) stream(w http.ResponseWriter, r *http.Request, body map[string]any, n int) {
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	event := func(choices, rest string) {
		fmt.Fprintf(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":%q,\"choices\":[%s]%s}\n\n", f.model, choices, rest)
		_ = rc.Flush()
	}
	event(`{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}`, `,"usage":null`)
	for _, word := range f.words[:n] {
		if r.Context().Err() != nil {
			f.cancelled.Add(1)
			return
		}
		event(fmt.Sprintf(`{"index":0,"delta":{"content":%q},"logprobs":null,"finish_reason":null}`, word), `,"usage":null`)
	}
	if n < len(f.words) {
		return
	}
	event(`{"index":0,"delta":{},"finish_reason":"stop"}`, `,"usage":null`)
	options, _ := body["stream_options"].(map[string]any)
	if options["include_usage"] == true {
		event("", fmt.Sprintf(`,"usage":{"prompt_tokens":7,"completion_tokens":%d,"total_tokens":%d}`, n, n+7))
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// dies cuts the connection before an answer.
func dies(http.ResponseWriter, *http.Request, map[string]any) bool { panic(http.ErrAbortHandler) }

// says answers with a status and a body.
func says(status int, body string) func(http.ResponseWriter, *http.Request, map[string]any) bool {
	return func(w http.ResponseWriter, _ *http.Request, _ map[string]any) bool {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		return true
	}
}

// diesAfter streams n words and cuts the connection.
func (f *instanceFake) diesAfter(n int) func(http.ResponseWriter, *http.Request, map[string]any) bool {
	return func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		f.stream(w, r, body, n)
		panic(http.ErrAbortHandler)
	}
}

// hangsAfter streams n words and then stands still until the gateway gives up.
func (f *instanceFake) hangsAfter(n int) func(http.ResponseWriter, *http.Request, map[string]any) bool {
	return func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		if n > 0 {
			f.stream(w, r, body, n)
		}
		<-r.Context().Done()
		f.cancelled.Add(1)
		return true
	}
}

// holds makes requests wait until leave is called or the test ends; reached has
// one as soon as one waits.
func (f *instanceFake) holds(t testing.TB) (reached <-chan struct{}, leave func()) {
	waits, gate := make(chan struct{}, 1), make(chan struct{})
	f.on(func(http.ResponseWriter, *http.Request, map[string]any) bool {
		select {
		case waits <- struct{}{}:
		default:
		}
		<-gate
		return false
	})
	leave = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(leave)
	return waits, leave
}

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// background runs f until the test ends.
func background(t testing.TB, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
}
