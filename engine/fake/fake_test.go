package fake

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/sse"
)

func serve(t *testing.T, o Options) (*Engine, *httptest.Server) {
	e := New(o)
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	return e, s
}

func post(t *testing.T, url, body string) (int, map[string]any) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatalf("status %d: %v", resp.StatusCode, err)
	}
	return resp.StatusCode, v
}

const question = `"model":"fake","messages":[{"role":"user","content":"hello there"}]`

func textOf(t *testing.T, v map[string]any) string {
	t.Helper()
	c := v["choices"].([]any)[0].(map[string]any)
	if m, ok := c["message"].(map[string]any); ok {
		return m["content"].(string)
	}
	return c["text"].(string)
}

func TestWholeAnswer(t *testing.T) {
	e, s := serve(t, Options{})
	status, v := post(t, s.URL+"/v1/chat/completions", `{`+question+`,"max_tokens":5,"logprobs":true,"top_logprobs":2,"tools":[],"unknown":1}`)
	if status != 200 || len(strings.Fields(textOf(t, v))) != 5 {
		t.Fatalf("status %d, answer %v", status, v)
	}
	usage := v["usage"].(map[string]any)
	if usage["completion_tokens"] != 5.0 || usage["prompt_tokens_details"] != nil {
		t.Errorf("usage %v", usage)
	}
	choice := v["choices"].([]any)[0].(map[string]any)
	if choice["finish_reason"] != "length" {
		t.Errorf("finish %v", choice["finish_reason"])
	}
	content := choice["logprobs"].(map[string]any)["content"].([]any)
	if len(content) != 5 || len(content[0].(map[string]any)["top_logprobs"].([]any)) != 2 {
		t.Errorf("logprobs %v", content)
	}
	if _, again := post(t, s.URL+"/v1/chat/completions", `{`+question+`,"max_tokens":5}`); textOf(t, again) != textOf(t, v) {
		t.Error("the text depends on more than the prompt")
	}
	if _, text := post(t, s.URL+"/v1/completions", `{"model":"fake","prompt":"once","logprobs":1}`); len(strings.Fields(textOf(t, text))) != 16 {
		t.Errorf("text answer %v", text)
	}
	if e.InFlight() != 0 || e.Held() != 0 || e.Calls() != 3 {
		t.Errorf("in flight %d, blocks %d, calls %d", e.InFlight(), e.Held(), e.Calls())
	}
}

func TestStreamEqualsWhole(t *testing.T) {
	_, s := serve(t, Options{TTFT: time.Millisecond, ITL: time.Millisecond})
	_, whole := post(t, s.URL+"/v1/chat/completions", `{`+question+`}`)
	resp, err := http.Post(s.URL+"/v1/chat/completions", "application/json",
		strings.NewReader(`{`+question+`,"stream":true,"stream_options":{"include_usage":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var text, finish string
	var usage map[string]any
	r := sse.NewReader(resp.Body)
	for {
		data, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if string(data) == sse.Done {
			break
		}
		var c struct {
			Choices []struct {
				Delta  struct{ Content string }
				Finish string `json:"finish_reason"`
			}
			Usage map[string]any
			KV    any `json:"kv_transfer_params"`
		}
		if err := json.Unmarshal(data, &c); err != nil || c.KV != nil {
			t.Fatalf("%v: %s", err, data)
		}
		for _, ch := range c.Choices {
			text += ch.Delta.Content
			finish += ch.Finish
		}
		usage = c.Usage
	}
	if text != textOf(t, whole) || finish != "stop" || usage["completion_tokens"] != 16.0 {
		t.Errorf("%q, want %q; finish %q, usage %v", text, textOf(t, whole), finish, usage)
	}
}

func TestErrors(t *testing.T) {
	_, s := serve(t, Options{Context: 10})
	for _, tt := range []struct {
		body, param string
		status      int
	}{
		{`{`, "", 400},
		{`{"model":"fake","messages":[]}`, "messages", 400},
		{`{"model":"fake","messages":[{"role":"user","content":5}]}`, "messages[0].content", 400},
		{`{"model":"other","messages":[{"role":"user","content":"a"}]}`, "model", 404},
		{`{` + question + `,"max_tokens":0}`, "max_tokens", 400},
		{`{` + question + `,"n":2}`, "n", 400},
		{`{` + question + `,"kv_transfer_params":3}`, "kv_transfer_params", 400},
		{`{"model":"fake","messages":[{"role":"user","content":"` + strings.Repeat("long ", 20) + `"}]}`, "input_tokens", 400},
	} {
		status, v := post(t, s.URL+"/v1/chat/completions", tt.body)
		e := v["error"].(map[string]any)
		if p, _ := e["param"].(string); status != tt.status || p != tt.param || e["code"] != float64(tt.status) {
			t.Errorf("%.60s: status %d, error %v", tt.body, status, e)
		}
	}
}

// pd runs both legs, changing the offer in between.
func pd(t *testing.T, p, d *httptest.Server, change func(map[string]any)) (int, map[string]any) {
	t.Helper()
	_, leg := post(t, p.URL+"/v1/chat/completions",
		`{`+question+`,"stream":false,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}}`)
	kv := leg["kv_transfer_params"].(map[string]any)
	if len(kv["remote_block_ids"].([]any)[0].([]any)) == 0 || kv["do_remote_prefill"] != true {
		t.Fatalf("offer %v", kv)
	}
	if change != nil {
		change(kv)
	}
	raw, err := json.Marshal(kv)
	if err != nil {
		t.Fatal(err)
	}
	return post(t, d.URL+"/v1/chat/completions", `{`+question+`,"kv_transfer_params":`+string(raw)+`}`)
}

func TestPrefillDecode(t *testing.T) {
	prefill, p := serve(t, Options{})
	decode, d := serve(t, Options{})
	_, want := post(t, d.URL+"/v1/chat/completions", `{`+question+`}`)
	status, got := pd(t, p, d, nil)
	if status != 200 || textOf(t, got) != textOf(t, want) {
		t.Fatalf("status %d, %v", status, got)
	}
	if prefill.Held() != 0 || decode.Held() != 0 {
		t.Errorf("blocks left: %d and %d", prefill.Held(), decode.Held())
	}
	if status, _ := pd(t, p, d, func(kv map[string]any) { kv["remote_request_id"] = "another" }); status != 500 {
		t.Errorf("blocks that are not there: status %d", status)
	}
	if status, _ := pd(t, p, d, func(kv map[string]any) { kv["remote_host"] = nil }); status != 200 {
		t.Errorf("an incomplete offer is ignored by vLLM: status %d", status)
	}
	_, again := serve(t, Options{Recompute: true})
	if status, _ := pd(t, p, again, func(kv map[string]any) { kv["remote_engine_id"] = "restarted" }); status != 200 {
		t.Errorf("recompute policy: status %d", status)
	}
}

func TestLeaseEnds(t *testing.T) {
	prefill, p := serve(t, Options{Lease: 20 * time.Millisecond})
	_, d := serve(t, Options{})
	status, _ := pd(t, p, d, func(map[string]any) {
		eventually(t, "lease", func() bool { return prefill.Held() == 0 })
	})
	if status != 500 {
		t.Errorf("status %d", status)
	}
	if m := scrape(t, p.URL); !strings.Contains(m, `vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="fake"} 1`) {
		t.Errorf("metrics: %s", m)
	}
}

func scrape(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen within a minute", what)
		}
	}
}

func TestQueueAndCancel(t *testing.T) {
	e, s := serve(t, Options{MaxSeqs: 1, TTFT: time.Hour})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 2)
	for range 2 {
		go func() {
			req, _ := http.NewRequestWithContext(ctx, "POST", s.URL+"/v1/chat/completions", strings.NewReader(`{`+question+`}`))
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				resp.Body.Close()
			}
			done <- err
		}()
	}
	eventually(t, "one runs, one waits", func() bool {
		m := scrape(t, s.URL)
		return strings.Contains(m, `vllm:num_requests_running{engine="0",model_name="fake"} 1`) &&
			strings.Contains(m, `vllm:num_requests_waiting{engine="0",model_name="fake"} 1`)
	})
	cancel()
	<-done
	<-done
	eventually(t, "both ended", func() bool { return e.InFlight() == 0 && e.Held() == 0 })
}

func TestHook(t *testing.T) {
	var log []string
	hook := func(_ context.Context, s Stage, c Call, w http.ResponseWriter) bool {
		log = append(log, fmt.Sprint(s, c.Token))
		switch {
		case c.Number == 1 && s == Arrived:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":{}}`)
			return true
		case c.Number == 2 && s == Token && c.Token == 2:
			panic(http.ErrAbortHandler)
		}
		return false
	}
	e, s := serve(t, Options{Hook: hook, Reply: func(p string) string { return p + " yourself" }})
	if status, _ := post(t, s.URL+"/v1/chat/completions", `{`+question+`}`); status != 503 {
		t.Errorf("status %d", status)
	}
	resp, err := http.Post(s.URL+"/v1/chat/completions", "application/json", strings.NewReader(`{`+question+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines, text := bufio.NewScanner(resp.Body), ""
	for lines.Scan() {
		text += lines.Text()
	}
	if lines.Err() == nil || !strings.Contains(text, "there") || strings.Contains(text, "yourself") || strings.Contains(text, sse.Done) {
		t.Errorf("cut stream: error %v, %s", lines.Err(), text)
	}
	eventually(t, "freed", func() bool { return e.InFlight() == 0 && e.Held() == 0 })
	if want := "[0 0 0 0 1 0 2 0 2 1 2 2]"; fmt.Sprint(log) != want {
		t.Errorf("stages %v, want %s", log, want)
	}
}

func TestOtherPaths(t *testing.T) {
	_, s := serve(t, Options{})
	for path, want := range map[string]string{"/v1/models": `"max_model_len":8192`, "/load": `"server_load":0`, "/version": "fake",
		"/health": "", "/ping": "", "/metrics": `vllm:cache_config_info{block_size="16",engine="0",model_name="fake",num_gpu_blocks="65536"} 1`} {
		resp, err := http.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || !strings.Contains(string(b), want) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, b)
		}
	}
	if status, _ := post(t, s.URL+"/nowhere", "{}"); status != 404 {
		t.Errorf("unknown path: %d", status)
	}
}
