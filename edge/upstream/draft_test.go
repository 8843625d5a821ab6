package upstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/openai"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers every request with status and body.
func serve(t testing.TB, h http.HandlerFunc) *upstream.Worker {
	t.Helper()
	s := httptest.NewServer(h)
	tr := &http.Transport{}
	t.Cleanup(func() { tr.CloseIdleConnections(); s.Close() })
	return &upstream.Worker{HTTP: &http.Client{Transport: tr}, URL: s.URL, FirstByte: 5 * time.Second, Stall: 5 * time.Second}
}

func say(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, body)
	}
}

func request() openai.Body {
	b, err := openai.ParseBody([]byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"weir":{"mode":"auto"},"kv_transfer_params":{}}`))
	if err != nil {
		panic(err)
	}
	return b
}

const (
	tokenA = `data: {"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.5,"top_logprobs":[{"logprob":-0.5},{"logprob":-2}]}]}}]}` + "\n\n"
	tokenB = `data: {"choices":[{"index":0,"delta":{"content":"b"},"logprobs":{"content":[{"token":"b","logprob":-0.25,"top_logprobs":[]}]}}]}` + "\n\n"
	bare   = `data: {"choices":[{"index":0,"delta":{"content":"c"}}]}` + "\n\n"
	finish = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usage  = `data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}` + "\n\n"
	done   = "data: [DONE]\n\n"
)

func TestGenerate(t *testing.T) {
	for _, tt := range []struct {
		name, stream string
		text         string
		tokens       int
		counted      bool
		usable       bool
		sum          float64
		err          error
	}{
		{"whole", ": hello\n\n" + tokenA + tokenB + finish + usage + done, "ab", 2, false, true, -.75, nil},
		{"no usage", tokenA + tokenB + finish + done, "ab", 2, true, true, -.75, nil},
		{"no done", tokenA + tokenB + finish + usage, "ab", 2, false, true, -.75, nil},
		{"flushed text without its own probability", tokenA + tokenB + bare + finish + usage + done, "abc", 2, false, true, -.75, nil},
		{"too few probabilities", tokenA + bare + bare + bare + finish + done, "accc", 4, true, false, -.5, nil},
		{"no probabilities", bare + finish + usage + done, "c", 2, false, false, 0, nil},
		{"cut", tokenA, "a", 1, true, true, -.5, upstream.ErrTruncated},
		{"done without finish", tokenA + done, "a", 1, true, true, -.5, upstream.ErrTruncated},
		{"error event", tokenA + `data: {"error":{"message":"boom"}}` + "\n\n", "a", 1, true, true, -.5, upstream.ErrTruncated},
		{"not JSON", tokenA + "data: {{\n\n", "a", 1, true, true, -.5, upstream.ErrTruncated},
		{"other choices are not ours", tokenA + `data: {"choices":[{"index":1,"delta":{"content":"z"}}]}` + "\n\n" + finish + done, "a", 1, true, true, -.5, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := serve(t, say(tt.stream)).Generate(context.Background(), upstream.Chat, request(), nil)
			if !errors.Is(err, tt.err) || (tt.err == nil) != (err == nil) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if d.Text != tt.text || d.Usage.CompletionTokens != tt.tokens || d.Counted != tt.counted || d.Signals.Usable != tt.usable || math.Abs(d.Signals.SumLogProb-tt.sum) > 1e-9 {
				t.Errorf("draft %+v", d)
			}
		})
	}
}

func TestGenerateErrors(t *testing.T) {
	no := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			(&openai.Error{Status: status, Type: "t", Code: "c", Param: "messages", Message: "no"}).Write(w, nil)
		}
	}
	_, err := serve(t, no(400)).Generate(context.Background(), upstream.Chat, request(), nil)
	if e, ok := errors.AsType[*openai.Error](err); !ok || e.Status != 400 || e.Param != "messages" || errors.Is(err, upstream.ErrUnavailable) {
		t.Errorf("a refusal: %v", err)
	}
	for _, status := range []int{429, 500, 503} {
		if _, err := serve(t, no(status)).Generate(context.Background(), upstream.Chat, request(), nil); !errors.Is(err, upstream.ErrUnavailable) {
			t.Errorf("%d: %v", status, err)
		}
	}
	w := serve(t, no(200))
	w.URL = "http://127.0.0.1:1"
	if _, err := w.Generate(context.Background(), upstream.Chat, request(), nil); !errors.Is(err, upstream.ErrUnavailable) {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestGuardEndsSilence(t *testing.T) {
	hang := func(before string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then does a server see its client leave
			fmt.Fprint(w, before)
			if before != "" {
				_ = http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
		}
	}
	w := serve(t, hang(""))
	w.FirstByte = 20 * time.Millisecond
	if _, err := w.Generate(context.Background(), upstream.Chat, request(), nil); !errors.Is(err, upstream.ErrFirstByte) || !errors.Is(err, upstream.ErrUnavailable) {
		t.Errorf("no first byte: %v", err)
	}
	w = serve(t, hang(tokenA))
	w.Stall = 50 * time.Millisecond
	if d, err := w.Generate(context.Background(), upstream.Chat, request(), nil); !errors.Is(err, upstream.ErrStall) || !errors.Is(err, upstream.ErrTruncated) || d.Text != "a" {
		t.Errorf("stall: %v", err)
	}
}

// The client's request is not changed, and what is Weir's stays out.
func TestWhatTheWorkerIsAsked(t *testing.T) {
	var got map[string]json.RawMessage
	w := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&got)
		say(tokenA+finish+done)(w, r)
	})
	b := request()
	before := string(b.JSON())
	if _, err := w.Generate(context.Background(), upstream.Chat, b, http.Header{"X-Weir-Operation": {"op"}}); err != nil {
		t.Fatal(err)
	}
	if string(b.JSON()) != before {
		t.Error("the request was changed")
	}
	if got["weir"] != nil || got["kv_transfer_params"] != nil || string(got["stream"]) != "true" || string(got["logprobs"]) != "true" {
		t.Errorf("asked %v", got)
	}
}

// A server that speaks vLLM's protocol serves as the local model.
func TestGenerateFromTheFakeEngine(t *testing.T) {
	e := fake.New(fake.Options{Model: "m", Reply: func(string) string { return "one two three" }})
	w := serve(t, e.ServeHTTP)
	for _, kind := range []upstream.Kind{upstream.Chat, upstream.Text} {
		b := request()
		b.Set("prompt", "x")
		d, err := w.Generate(context.Background(), kind, b, nil)
		if err != nil || d.Text != "one two three" || !d.Signals.Usable || d.Usage.CompletionTokens == 0 {
			t.Errorf("%s: %+v: %v", kind.Path(), d, err)
		}
	}
}

func FuzzGenerate(f *testing.F) {
	for _, s := range []string{tokenA + finish + usage + done, tokenB + "data: {", "data: {\"choices\":null}\n\n" + finish, done, "data: {\"choices\":[{\"logprobs\":{\"content\":[{\"logprob\":null}]}}]}\n\n" + finish} {
		f.Add(s)
	}
	var body string
	w := serve(f, func(rw http.ResponseWriter, r *http.Request) { say(body)(rw, r) })
	f.Fuzz(func(t *testing.T, s string) {
		body = s
		d, err := w.Generate(context.Background(), upstream.Chat, request(), nil)
		if err == nil && d.Finish == "" {
			t.Error("an answer without an end is no error")
		}
		joined := ""
		for _, p := range d.Pieces {
			joined += p.Text
		}
		if joined != d.Text {
			t.Errorf("pieces %q make %q", d.Text, joined)
		}
		if lp := d.Logprobs(upstream.Chat, true); !json.Valid(lp) || !strings.HasPrefix(string(lp), "{") {
			t.Errorf("log-probabilities %s", lp)
		}
	})
}
