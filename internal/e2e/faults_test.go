package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/client"
)

// TestBadInput sends wrong requests to both sides: an OpenAI-style error that
// names the fault, never a 500, never a hang.
func TestBadInput(t *testing.T) {
	s := running(t)
	ok := `"messages":[{"role":"user","content":"hi"}]`
	long := strings.Repeat("word ", 2<<20) // 10 MB
	tests := []struct {
		name, body, param string
		status            int
		headers           []string
	}{
		{"malformed JSON", `{"model":`, "", 400, nil},
		{"no object", `[1]`, "", 400, nil},
		{"unknown model", `{"model":"gpt-9",` + ok + `}`, "model", 404, nil},
		{"no model", `{` + ok + `}`, "model", 400, nil},
		{"empty messages", `{"model":"MODEL","messages":[]}`, "messages", 400, nil},
		{"no messages", `{"model":"MODEL"}`, "messages", 400, nil},
		{"10 MB prompt", chatBody("MODEL", long, ""), "messages", 400, nil},
		{"beyond the context", chatBody("MODEL", strings.Repeat("x", 5000), ""), "messages", 400, nil},
		{"unknown mode", `{"model":"MODEL",` + ok + `}`, "X-Weir-Mode", 400, []string{"X-Weir-Mode", "turbo"}},
		{"unknown weir member", `{"model":"MODEL",` + ok + `,"weir":{"mood":1}}`, "weir.mood", 400, nil},
		{"temperature", `{"model":"MODEL",` + ok + `,"temperature":"hot"}`, "temperature", 400, nil},
		{"max_tokens", `{"model":"MODEL",` + ok + `,"max_tokens":-1}`, "max_tokens", 400, nil},
		{"stop", `{"model":"MODEL",` + ok + `,"stop":{}}`, "stop", 400, nil},
		{"n", `{"model":"MODEL",` + ok + `,"n":2}`, "n", 400, nil},
		{"tools", `{"model":"MODEL",` + ok + `,"tools":[{"type":"function","function":{"name":"f"}}]}`, "tools", 400, nil},
		{"logprobs", `{"model":"MODEL",` + ok + `,"logprobs":"yes"}`, "logprobs", 400, nil},
		{"stream", `{"model":"MODEL",` + ok + `,"stream":1}`, "stream", 400, nil},
		{"user", `{"model":"MODEL",` + ok + `,"user":7}`, "user", 400, nil},
		{"metadata", `{"model":"MODEL",` + ok + `,"metadata":"x"}`, "metadata", 400, nil},
		{"tool calls", `{"model":"MODEL","messages":[{"role":"assistant","content":"x","tool_calls":{}}]}`, "messages[0].tool_calls", 400, nil},
		{"deadline as text", `{"model":"MODEL",` + ok + `,"weir":{"deadline_ms":"500"}}`, "weir.deadline_ms", 400, nil},
		{"prompt in a chat", `{"model":"MODEL",` + ok + `,"prompt":"hi"}`, "prompt", 400, nil},
	}
	sides := map[string][2]string{"edge": {s.EdgeURL, "hub-edge"}, "cascade": {s.EdgeURL, "auto"}, "cloud": {s.CloudURL, "hub-cloud"}}
	for side, to := range sides {
		for _, tt := range tests {
			t.Run(side+"/"+tt.name, func(t *testing.T) {
				status, h, body := post(t, to[0], s.AppKey, strings.ReplaceAll(tt.body, "MODEL", to[1]), tt.headers...)
				checkError(t, status, h, body, tt.status, tt.param)
			})
		}
		t.Run(side+"/no key", func(t *testing.T) {
			status, h, body := post(t, to[0], "", chatBody(to[1], "hi", ""))
			checkError(t, status, h, body, 401, "")
		})
		t.Run(side+"/bad key", func(t *testing.T) {
			status, h, body := post(t, to[0], "wk_abcd_"+strings.Repeat("x", 43), chatBody(to[1], "hi", ""))
			checkError(t, status, h, body, 401, "")
			if strings.Contains(string(body), "xxxx") {
				t.Error("the answer repeats the key")
			}
		})
	}
}

func checkError(t *testing.T, status int, h http.Header, body []byte, wantStatus int, wantParam string) {
	t.Helper()
	var e struct {
		Error struct {
			Message, Type string
			Param, Code   *string
		}
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Fatalf("status %d, not an OpenAI error: %.300s", status, body)
	}
	param := ""
	if e.Error.Param != nil {
		param = *e.Error.Param
	}
	if status != wantStatus || param != wantParam {
		t.Errorf("status %d naming %q, want %d naming %q: %s", status, param, wantStatus, wantParam, e.Error.Message)
	}
	if h.Get("X-Request-Id") == "" {
		t.Error("X-Request-Id is missing")
	}
}

// longStream starts a cloud stream that runs for a while.
func longStream(t *testing.T, s *system) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.CloudURL+"/v1/chat/completions",
		strings.NewReader(chatBody("hub-cloud", lightPrompt, `,"stream":true,"ignore_eos":true,"max_tokens":1900`)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.AppKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestWorkerKilledMidStream(t *testing.T) {
	s := own(t)
	resp := longStream(t, s)
	defer resp.Body.Close()
	scan := bufio.NewScanner(resp.Body)
	scan.Buffer(nil, 1<<20)
	events, killed, failed, done := 0, false, false, false
	for scan.Scan() {
		data, ok := strings.CutPrefix(scan.Text(), "data: ")
		if !ok {
			continue
		}
		events++
		if events == 1 { // sockets hold much of what comes later
			s.kill(t, "decode-1")
			killed = true
		}
		failed = failed || strings.HasPrefix(data, `{"error"`)
		done = done || data == "[DONE]"
	}
	if !killed || !failed || done {
		t.Errorf("%d events: killed %v, error event %v, [DONE] %v; want an error event and no [DONE]", events, killed, failed, done)
	}
	id := resp.Header.Get("X-Request-Id")
	eventually(t, "the usage record says what happened", time.Minute, func() bool {
		return strings.Contains(s.admin(t, "usage?operation_id="+id), `"upstream_truncated"`)
	})
}

func (s *system) admin(t *testing.T, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.CloudURL+"/admin/v1/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.AdminToken)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if _, err := bufio.NewReader(resp.Body).WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestWorkerDeadBeforeTheFirstToken(t *testing.T) {
	s := own(t)
	s.kill(t, "prefill-1") // the decode worker must answer alone
	status, h, body := post(t, s.CloudURL, s.AppKey, chatBody("hub-cloud", lightPrompt, ""))
	if status != 200 || !strings.Contains(string(body), "light.on") {
		t.Errorf("status %d, attempts %s: %s", status, h.Get("X-Weir-Attempts"), body)
	}
}

func TestPostgresStopped(t *testing.T) {
	s := own(t)
	pids := processes(t, "postgres-guard")
	stopped := false
	for _, pid := range pids {
		if isChildOf(pid, s.cmd.Process.Pid) {
			stopped = syscall.Kill(pid, syscall.SIGSTOP) == nil
			// It must run again to bury its children, or the cluster looks alive
			// when the test cleans up.
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
			for _, child := range childrenOf(t, pid) {
				_ = syscall.Kill(child, syscall.SIGKILL)
			}
		}
	}
	if !stopped {
		t.Fatalf("no guard of this system among %v", pids)
	}
	for i := range 20 {
		for _, url := range []string{s.CloudURL, s.EdgeURL} {
			if status, _, body := post(t, url, s.AppKey, chatBody("hub-cloud", lightPrompt, "")); status != 200 {
				t.Fatalf("request %d to %s without Postgres: %d %s", i, url, status, body)
			}
		}
	}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", s.base+3))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("/readyz is %d while only the database is away", resp.StatusCode)
	}
}

func TestCloudAway(t *testing.T) {
	s := own(t)
	cloud := s.pid(t, "cloud")
	if err := syscall.Kill(cloud, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(cloud, syscall.SIGCONT) }) // or it cannot end
	c := &client.Client{URL: s.EdgeURL, Key: s.AppKey, HTTP: http.DefaultClient}
	hard := "reverse the word umbrella"
	a, err := c.Chat(t.Context(), client.Request{Prompt: hard}, nil)
	if err != nil || a.Weir.Tier != "edge" || (a.Weir.Reason != "offline" && a.Weir.Reason != "cloud_error") {
		t.Errorf("auto while the cloud hangs: %+v, %v", a, err)
	}
	eventually(t, "the edge knows that it is offline", 60*time.Second, func() bool {
		a, err := c.Chat(t.Context(), client.Request{Prompt: hard}, nil)
		return err == nil && a.Weir.Tier == "edge" && a.Weir.Reason == "offline"
	})
	if err := syscall.Kill(cloud, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "escalation works again", 60*time.Second, func() bool {
		a, err := c.Chat(t.Context(), client.Request{Prompt: hard}, nil)
		return err == nil && a.Weir.Tier == "cloud"
	})
}
