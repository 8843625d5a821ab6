package worker_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/sse"
)

func user(s string) []any { return []any{body{"role": "user", "content": s}} }

// badMembers are chat requests with one member that is wrong, and the member
// that the error names.
var badMembers = []struct {
	member string
	value  any
	param  string
	status int
}{
	{"model", nil, "model", 400},
	{"model", 5, "model", 400},
	{"model", "other", "model", 404},
	{"messages", nil, "messages", 400},
	{"messages", []any{}, "messages", 400},
	{"messages", "hi", "messages", 400},
	{"messages", []any{5}, "messages[0]", 400},
	{"messages", []any{body{"content": "x"}}, "messages[0].role", 400},
	{"messages", []any{body{"role": "king", "content": "x"}}, "messages[0].role", 400},
	{"messages", []any{body{"role": "user", "content": []any{body{"type": "image_url"}}}}, "messages[0].content[0].type", 400},
	{"messages", user(strings.Repeat("a", 200)), "messages", 400},
	{"messages", user(strings.Repeat("ab ", 3_400_000)), "messages", 400},
	{"max_tokens", 0, "max_tokens", 400},
	{"max_tokens", "x", "max_tokens", 400},
	{"max_tokens", 1.5, "max_tokens", 400},
	{"max_completion_tokens", -1, "max_completion_tokens", 400},
	{"temperature", 3, "temperature", 400},
	{"temperature", "warm", "temperature", 400},
	{"top_p", 1.1, "top_p", 400},
	{"top_k", -2, "top_k", 400},
	{"min_p", 2, "min_p", 400},
	{"seed", 1.5, "seed", 400},
	{"stop", 5, "stop", 400},
	{"stop", []any{"a", "b", "c", "d", "e"}, "stop", 400},
	{"stop", []any{""}, "stop", 400},
	{"n", 2, "n", 400},
	{"n", "x", "n", 400},
	{"stream", "yes", "stream", 400},
	{"stream_options", body{"include_usage": true}, "stream_options", 400},
	{"logprobs", 3, "logprobs", 400},
	{"top_logprobs", 3, "top_logprobs", 400},
	{"tools", []any{body{"type": "function"}}, "tools", 400},
	{"tool_choice", "required", "tool_choice", 400},
	{"response_format", body{"type": "json_object"}, "response_format", 400},
	{"logit_bias", body{"5": 1}, "logit_bias", 400},
	{"presence_penalty", 0.5, "presence_penalty", 400},
	{"frequency_penalty", -1, "frequency_penalty", 400},
	{"modalities", []any{"audio"}, "modalities", 400},
	{"audio", body{}, "audio", 400},
	{"made_up", true, "made_up", 400},
	{"kv_transfer_params", 5, "kv_transfer_params", 400},
	{"kv_transfer_params", body{"do_remote_decode": true, "do_remote_prefill": true}, "kv_transfer_params", 400},
	{"continue_final_message", true, "add_generation_prompt", 400},
}

func TestBadInput(t *testing.T) {
	r := start(t, worker.Config{Role: "mixed"}, toy(runnertest.Options{Context: 128}))
	good := body{"model": "toy", "messages": user("hi"), "max_tokens": 3}
	long := strings.Repeat("a", 200)
	for _, tt := range badMembers {
		status, a := r.post(t, "/v1/chat/completions", with(good, tt.member, tt.value))
		if status != tt.status || a.param() != tt.param {
			t.Errorf("%s = %.40v: status %d, %v; want %d, %s", tt.member, tt.value, status, a, tt.status, tt.param)
		}
	}
	for _, raw := range []string{"", "{", "[]", "null", `{"model":"toy"} x`, "\xff"} {
		resp, err := http.Post(r.url+"/v1/completions", "application/json", strings.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if status, a := decode(t, resp); status != 400 || a["error"] == nil {
			t.Errorf("%q: status %d, %v", raw, status, a)
		}
		resp.Body.Close()
	}
	if status, a := r.post(t, "/v1/completions", body{"model": "toy", "prompt": []any{"a", "b"}}); status != 400 || a.param() != "prompt" {
		t.Errorf("list of prompts: %d, %v", status, a)
	}
	status, a := r.post(t, "/v1/completions", body{"model": "toy", "prompt": long})
	if e := a["error"].(map[string]any); status != 400 || e["code"] != "context_length_exceeded" || e["param"] != "prompt" {
		t.Errorf("long prompt: %d, %v", status, a)
	}
	if status, a := r.post(t, "/v1/embeddings", body{}); status != 404 || a["error"] == nil {
		t.Errorf("unknown path: %d, %v", status, a)
	}
	resp, err := http.Get(r.url + "/v1/chat/completions")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 405 {
		t.Errorf("GET: %d", resp.StatusCode)
	}
}

// TestHarmlessMembers: what OpenAI's and vLLM's clients send by default.
func TestHarmlessMembers(t *testing.T) {
	r := start(t, worker.Config{Role: "mixed"}, toy(runnertest.Options{}))
	b := body{"model": "toy", "messages": user("hi"), "max_tokens": 2, "user": "u", "metadata": body{"a": "b"}, "store": false,
		"service_tier": "auto", "safety_identifier": "x", "prompt_cache_key": "k", "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0,
		"logit_bias": body{}, "tools": []any{}, "tool_choice": "auto", "response_format": body{"type": "text"}, "repetition_penalty": 1.0,
		"stop": nil, "audio": nil, "modalities": []any{"text"}, "top_k": -1, "weir": body{}, "priority": 3, "parallel_tool_calls": true}
	if status, a := r.post(t, "/v1/chat/completions", b); status != 200 {
		t.Errorf("status %d, %v", status, a)
	}
}

// streamed posts with stream true and returns the chunks and whether [DONE] came.
// It may be called from any goroutine: what goes wrong is an error and an empty
// result.
func (r *running) streamed(t testing.TB, path string, b body) (chunks []openai.Response, raw []string, done bool) {
	t.Helper()
	resp := r.open(t, path, b)
	if resp == nil {
		return nil, nil, false
	}
	defer resp.Body.Close()
	return readStream(t, resp.Body)
}

// open starts a stream; it returns when the headers have come.
func (r *running) open(t testing.TB, path string, b body) *http.Response {
	t.Helper()
	data, err := json.Marshal(with(b, "stream", true))
	if err != nil {
		t.Error(err)
		return nil
	}
	resp, err := http.Post(r.url+path, "application/json", bytes.NewReader(data))
	if err != nil {
		t.Error(err)
		return nil
	}
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || ct != "text/event-stream" {
		t.Errorf("status %d, content type %s", resp.StatusCode, ct)
		resp.Body.Close()
		return nil
	}
	return resp
}

func readStream(t testing.TB, body io.Reader) (chunks []openai.Response, raw []string, done bool) {
	t.Helper()
	for sr := sse.NewReader(body); ; {
		event, err := sr.Next()
		if err != nil {
			if err != io.EOF {
				t.Error(err)
			}
			return chunks, raw, done
		}
		if string(event) == sse.Done {
			done = true
			continue
		}
		var c openai.Response
		if err := json.Unmarshal(event, &c); err != nil {
			t.Errorf("%v: %s", err, event)
			return chunks, raw, done
		}
		chunks, raw = append(chunks, c), append(raw, string(event))
	}
}

// TestStreamEqualsWhole over many settings: text, finish reason, log-probabilities
// and usage add up to the whole answer.
func TestStreamEqualsWhole(t *testing.T) {
	r := start(t, worker.Config{Role: "mixed"}, toy(runnertest.Options{}))
	for i := range 30 {
		b := body{"model": "toy", "messages": user(fmt.Sprint("question ", i)), "temperature": float64(i%3) / 2, "seed": i, "max_tokens": 1 + i*2,
			"logprobs": true, "top_logprobs": i % 4}
		if i%2 == 0 {
			b["stop"] = []any{string(rune('a' + i%26)), string(rune('A'+i%26)) + "x"}
		}
		_, whole := r.post(t, "/v1/chat/completions", b)
		chunks, raw, done := r.streamed(t, "/v1/chat/completions", with(b, "stream_options", body{"include_usage": true}))
		var text, finish string
		var lps []openai.TokenLogprob
		for k, c := range chunks {
			last := k == len(chunks)-1
			if (len(c.Choices) == 0) != last || (c.Usage != nil) != last || !strings.Contains(raw[k], `"usage":`) {
				t.Fatalf("chunk %d of %d: %s", k, len(chunks), raw[k])
			}
			if last {
				break
			}
			d := c.Choices[0].Delta
			if (d.Role == "assistant") != (k == 0) {
				t.Fatalf("chunk %d: %s", k, raw[k])
			}
			if d.Content != nil {
				text += *d.Content
			}
			if f := c.Choices[0].FinishReason; f != nil {
				finish += *f
			}
			if lp := c.Choices[0].Logprobs; lp != nil {
				lps = append(lps, lp.Content...)
			}
		}
		got, _ := json.Marshal(lps)
		want, _ := json.Marshal(whole.choice()["logprobs"].(map[string]any)["content"])
		if !done || text != whole.text() || finish != whole.choice()["finish_reason"] || string(got) != sorted(t, want) {
			t.Errorf("request %d: %q %s done=%v\n  want %q %v\n%s\n%s", i, text, finish, done, whole.text(), whole.choice()["finish_reason"], got, want)
		}
		if u := chunks[len(chunks)-1].Usage; float64(u.CompletionTokens) != whole["usage"].(map[string]any)["completion_tokens"] {
			t.Errorf("usage %+v, want %v", u, whole["usage"])
		}
	}
}

// sorted gives JSON of log-probabilities the member order of openai's types.
func sorted(t *testing.T, raw []byte) string {
	t.Helper()
	var v []openai.TokenLogprob
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	out, _ := json.Marshal(v)
	return string(out)
}

func TestTextCompletions(t *testing.T) {
	r := start(t, worker.Config{Role: "mixed"}, toy(runnertest.Options{}))
	b := body{"model": "toy", "prompt": "once", "max_tokens": 8, "temperature": 0, "logprobs": 1}
	status, whole := r.post(t, "/v1/completions", b)
	if status != 200 || whole["object"] != "text_completion" {
		t.Fatalf("%d, %v", status, whole)
	}
	chunks, _, done := r.streamed(t, "/v1/completions", b)
	text := ""
	for _, c := range chunks {
		text += *c.Choices[0].Text
	}
	if !done || text != whole.choice()["text"] || text == "" {
		t.Errorf("%q, want %v", text, whole.choice()["text"])
	}
}

// TestContinue: an answer continued from its own beginning is the same answer.
func TestContinue(t *testing.T) {
	r := start(t, worker.Config{Role: "mixed"}, toy(runnertest.Options{}))
	ask := func(extra ...any) string {
		messages := append(user("tell us a story"), extra...)
		_, a := r.post(t, "/v1/chat/completions", body{"model": "toy", "messages": messages, "temperature": 0,
			"continue_final_message": len(extra) > 0, "add_generation_prompt": len(extra) == 0})
		return a.text()
	}
	whole := ask()
	if len(whole) < 4 {
		t.Fatalf("the toy says only %q", whole)
	}
	if rest := ask(body{"role": "assistant", "content": whole[:3]}); whole[:3]+rest != whole {
		t.Errorf("%q + %q, want %q", whole[:3], rest, whole)
	}
}

func TestHealthAndModels(t *testing.T) {
	r := start(t, worker.Config{Role: "decode", Name: "d1"}, toy(runnertest.Options{Context: 100}))
	get := func(path string) body {
		resp, err := http.Get(r.url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, b := decode(t, resp)
		return b
	}
	h := get("/health")
	if h["status"] != "ok" || h["name"] != "d1" || h["epoch"] != r.Epoch || h["role"] != "decode" || h["model"] != "toy" || h["context"] != 100.0 ||
		h["fingerprint"].(map[string]any)["runner"] != "toy/1" || h["handoff"] != false {
		t.Errorf("health %v", h)
	}
	if m := get("/v1/models")["data"].([]any)[0].(map[string]any); m["id"] != "toy" || m["max_model_len"] != 100.0 {
		t.Errorf("models %v", m)
	}
	if get("/instance/v1/info")["kv"] != nil {
		t.Error("KV address without certificates")
	}
}

// TestMutualTLS: off loopback only a gateway's certificate gets an answer.
func TestMutualTLS(t *testing.T) {
	issue := certificates(t)
	r := start(t, issue(worker.Config{Role: "mixed", Listen: "0.0.0.0:0", AdvertiseHost: "127.0.0.1"}, "w", pki.RoleWorker), toy(runnertest.Options{}))
	addr := strings.Replace(r.Addr.String(), "[::]", "127.0.0.1", 1)
	addr = strings.Replace(addr, "0.0.0.0", "127.0.0.1", 1)
	for name, ok := range map[string]bool{"gateway": true, "worker": false, "": false} {
		var h pki.Holder
		c := issue(worker.Config{}, "client"+name, pki.Role(cmpOr(name, "gateway")))
		if name != "" {
			s, err := pki.LoadStatic(c.TLSCert, c.TLSKey)
			if err != nil {
				t.Fatal(err)
			}
			h = s
		}
		pool, err := pki.LoadPool(c.TLSCA)
		if err != nil {
			t.Fatal(err)
		}
		tr := &http.Transport{TLSClientConfig: pki.ClientConfig(h, pool, pki.RoleWorker), ForceAttemptHTTP2: true}
		resp, err := (&http.Client{Transport: tr}).Get("https://" + addr + "/health")
		if (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
		if err == nil {
			if resp.ProtoMajor != 2 {
				t.Errorf("protocol %s", resp.Proto)
			}
			_, b := decode(t, resp)
			if kv, _ := b["kv"].(map[string]any); kv["host"] != "127.0.0.1" || b["handoff"] != true {
				t.Errorf("address for hand-offs in %v", b)
			}
			resp.Body.Close()
		}
		tr.CloseIdleConnections()
	}
	if resp, err := http.Get("http://" + addr + "/health"); err == nil {
		if resp.Body.Close(); resp.StatusCode == 200 {
			t.Error("plain HTTP is answered")
		}
	}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
