package upstream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/jsonscan"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/testproc"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

// serve answers every request with status and body.
func serve(t testing.TB, h http.HandlerFunc) *upstream.Worker {
	t.Helper()
	s := httptest.NewServer(h)
	tr := &http.Transport{}
	t.Cleanup(func() { tr.CloseIdleConnections(); s.Close() })
	return &upstream.Worker{HTTP: &http.Client{Transport: tr}, URL: s.URL, FirstByte: time.Minute, Stall: time.Minute}
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
			d, err := serve(t, say(tt.stream)).Generate(context.Background(), upstream.Ask{Body: request()}, nil)
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
	_, err := serve(t, no(400)).Generate(context.Background(), upstream.Ask{Body: request()}, nil)
	if e, ok := errors.AsType[*openai.Error](err); !ok || e.Status != 400 || e.Param != "messages" || errors.Is(err, upstream.ErrUnavailable) {
		t.Errorf("a refusal: %v", err)
	}
	for _, status := range []int{429, 500, 503} {
		if _, err := serve(t, no(status)).Generate(context.Background(), upstream.Ask{Body: request()}, nil); !errors.Is(err, upstream.ErrUnavailable) {
			t.Errorf("%d: %v", status, err)
		}
	}
	w := serve(t, no(200))
	w.URL = "http://127.0.0.1:1"
	if _, err := w.Generate(context.Background(), upstream.Ask{Body: request()}, nil); !errors.Is(err, upstream.ErrUnavailable) {
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
	if _, err := w.Generate(context.Background(), upstream.Ask{Body: request()}, nil); !errors.Is(err, upstream.ErrFirstByte) || !errors.Is(err, upstream.ErrUnavailable) {
		t.Errorf("no first byte: %v", err)
	}
	w = serve(t, hang(tokenA))
	w.Stall = 50 * time.Millisecond
	if d, err := w.Generate(context.Background(), upstream.Ask{Body: request()}, nil); !errors.Is(err, upstream.ErrStall) || !errors.Is(err, upstream.ErrTruncated) || d.Text != "a" {
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
	if _, err := w.Generate(context.Background(), upstream.Ask{Body: b, Header: http.Header{"X-Weir-Operation": {"op"}}}, nil); err != nil {
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
		d, err := w.Generate(context.Background(), upstream.Ask{Kind: kind, Body: b}, nil)
		if err != nil || d.Text != "one two three" || !d.Signals.Usable || d.Usage.CompletionTokens == 0 {
			t.Errorf("%s: %+v: %v", kind.Path(), d, err)
		}
	}
}

// A watch sees each piece as it comes and can end the generation.
func TestWatch(t *testing.T) {
	stop := errors.New("enough")
	var seen []string
	d, err := serve(t, say(tokenA+tokenB+bare+finish+usage+done)).Generate(context.Background(), upstream.Ask{Body: request()}, func(p *upstream.Progress) error {
		s := p.Signals()
		seen = append(seen, fmt.Sprintf("%s %v %d", p.Text, p.LogProbs, s.Tokens))
		if len(seen) == 2 {
			return stop
		}
		return nil
	})
	if err != stop || d.Text != "ab" || d.Usage.CompletionTokens != 2 || !d.Counted {
		t.Errorf("%+v, %v", d, err)
	}
	if strings.Join(seen, ", ") != `"a" [-0.5] 1, "b" [-0.25] 2` {
		t.Errorf("saw %q", seen)
	}
}

// A watch is told which tokens are reasoning.
func TestWatchReasoning(t *testing.T) {
	think := strings.Replace(tokenA, `"content":"a"`, `"reasoning_content":"a"`, 1)
	var seen []bool
	_, err := serve(t, say(think+tokenB+finish+done)).Generate(context.Background(), upstream.Ask{Body: request()}, func(p *upstream.Progress) error {
		seen = append(seen, p.Think)
		return nil
	})
	if err != nil || !slices.Equal(seen, []bool{true, false}) {
		t.Errorf("reasoning %v, %v", seen, err)
	}
}

func TestToolCalls(t *testing.T) {
	delta := func(s string) string {
		return `data: {"choices":[{"index":0,"delta":{"tool_calls":[` + s + `]}}]}` + "\n\n"
	}
	d, err := serve(t, say(delta(`{"index":0,"id":"c1","type":"function","function":{"name":"light","arguments":"{\"on\":"}}`)+
		delta(`{"index":0,"function":{"arguments":"true}"}}`)+delta(`{"index":1,"id":"c2","function":{"name":"fan","arguments":"{}"}}`)+
		`data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`+"\n\n")).
		Generate(context.Background(), upstream.Ask{Body: request()}, nil)
	want := []upstream.Call{{ID: "c1", Name: "light", Arguments: `{"on":true}`}, {ID: "c2", Name: "fan", Arguments: "{}"}}
	if err != nil || !slices.Equal(d.Calls, want) || d.Finish != "tool_calls" {
		t.Errorf("%+v, %v", d, err)
	}
	for _, bad := range []string{`{"index":3}`, `{"index":-1}`, `7`} {
		if _, err := serve(t, say(delta(bad)+finish)).Generate(context.Background(), upstream.Ask{Body: request()}, nil); !errors.Is(err, upstream.ErrTruncated) {
			t.Errorf("%s: %v", bad, err)
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
		var pieces []upstream.Piece
		joined := []byte{}
		d, err := w.Generate(context.Background(), upstream.Ask{Body: request()}, func(p *upstream.Progress) error {
			joined, _ = jsonscan.AppendText(joined, p.Text)
			pieces = append(pieces, upstream.Piece{Logprobs: bytes.Clone(p.Logprobs)})
			return nil
		})
		if err == nil && d.Finish == "" {
			t.Error("an answer without an end is no error")
		}
		if !strings.HasPrefix(d.Text, string(joined)) || err == nil && string(joined) != d.Text {
			t.Errorf("pieces %q make %q", joined, d.Text)
		}
		if lp := upstream.JoinLogprobs(upstream.Chat, pieces); lp != nil && !json.Valid(lp) {
			t.Errorf("log-probabilities %s", lp)
		}
	})
}
