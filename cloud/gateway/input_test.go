package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// TestBadInput: whatever a client sends, it is told which member is at fault,
// no instance is asked and the server does not fail.
func TestBadInput(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	r := newRig(t, nil, d)
	msgs := `"messages":[{"role":"user","content":"hi"}]`
	tests := []struct {
		name, body string
		status     int
		param      string
	}{
		{"empty", ``, 400, ""},
		{"not JSON", `{"model":`, 400, ""},
		{"a list", `[]`, 400, ""},
		{"null", `null`, 400, ""},
		{"two objects", `{}{}`, 400, ""},
		{"invalid UTF-8", "{\"model\":\"\xff\"}", 400, ""},
		{"no model", `{` + msgs + `}`, 400, "model"},
		{"unknown model", `{"model":"gpt",` + msgs + `}`, 404, "model"},
		{"edge's model", `{"model":"hub-edge",` + msgs + `}`, 404, "model"},
		{"no messages", `{"model":"auto"}`, 400, "messages"},
		{"empty messages", `{"model":"auto","messages":[]}`, 400, "messages"},
		{"message without role", `{"model":"auto","messages":[{"content":"x"}]}`, 400, "messages[0].role"},
		{"unknown role", `{"model":"auto","messages":[{"role":"king","content":"x"}]}`, 400, "messages[0].role"},
		{"image", `{"model":"auto","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "messages[0].content[0].type"},
		{"unknown weir member", `{"model":"auto",` + msgs + `,"weir":{"speed":1}}`, 400, "weir.speed"},
		{"weir of a wrong type", `{"model":"auto",` + msgs + `,"weir":7}`, 400, "weir"},
		{"draft from an application", `{"model":"auto",` + msgs + `,"weir":{"draft":{"text":"x","reason":"low_confidence"}}}`, 400, "weir.draft"},
		{"privacy twice", `{"model":"auto",` + msgs + `,"weir":{"privacy":"local-only","privacy":"any"}}`, 400, "weir.privacy"},
		{"weir twice", `{"model":"auto",` + msgs + `,"weir":{"privacy":"local-only"},"weir":{}}`, 400, "weir"},
		{"Weir", `{"model":"auto",` + msgs + `,"Weir":{"privacy":"local-only"}}`, 400, "Weir"},
		{"model twice", `{"model":"auto",` + msgs + `,"model":"big"}`, 400, "model"},
		{"a prompt of ten megabytes", `{"model":"auto","messages":[{"role":"user","content":"` + strings.Repeat("a", 10<<20) + `"}]}`, 400, "messages"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := r.chat(t, tt.body)
			e := errorOf(t, got.body)
			param, _ := e["param"].(string)
			if got.status != tt.status || param != tt.param {
				t.Errorf("%d %.300s, want %d naming %q", got.status, got.body, tt.status, tt.param)
			}
			weirOf(t, got.body)
			if got.header.Get("X-Should-Retry") != "false" {
				t.Error("clients would send it again")
			}
		})
	}
	if n := d.decodes.Load(); n != 0 {
		t.Errorf("%d requests reached the instance", n)
	}
}

// TestWrongTypes puts values of every wrong type into every member.
func TestWrongTypes(t *testing.T) {
	r := newRig(t, nil, newInstance(t, "d", "mixed"))
	wrong := map[string][]string{
		"model":                  {`7`, `[]`, `{}`, `true`},
		"messages":               {`7`, `"x"`, `{}`, `[7]`, `["x"]`, `[null]`, `[{"role":7}]`, `[{"role":"user","content":7}]`, `[{"role":"user"}]`},
		"max_tokens":             {`"x"`, `0`, `-1`, `1.5`, `1e99`, `[]`},
		"max_completion_tokens":  {`"x"`, `0`, `{}`},
		"temperature":            {`"x"`, `-1`, `3`, `[]`},
		"top_p":                  {`"x"`, `-0.1`, `1.1`},
		"min_p":                  {`"x"`, `2`},
		"top_k":                  {`"x"`, `1.5`},
		"seed":                   {`"x"`, `1.5`},
		"stop":                   {`7`, `[7]`, `[""]`, `["a","b","c","d","e"]`},
		"n":                      {`"x"`, `0`, `1000`},
		"stream":                 {`"x"`, `7`},
		"stream_options":         {`7`, `"x"`, `{"include_usage":7}`},
		"logprobs":               {`7`, `"x"`},
		"top_logprobs":           {`"x"`, `21`, `-1`, `5`},
		"continue_final_message": {`7`, `true`},
		"weir":                   {`7`, `"x"`, `[]`, `{"mode":"fast"}`, `{"mode":7}`, `{"privacy":"secret"}`, `{"deadline_ms":0}`, `{"deadline_ms":"x"}`, `{"max_cost_usd":-1}`, `{"slo":"none"}`, `{"slo":[]}`, `{"session":{}}`, `{"explain":"x"}`, `{"draft":7}`},
	}
	for name, values := range wrong {
		for _, v := range values {
			stream := name == "stream_options"
			body := map[bool]string{false: `{`, true: `{"stream":true,`}[stream]
			if name != "model" {
				body += `"model":"auto",`
			}
			if name != "messages" {
				body += `"messages":[{"role":"user","content":"hi"}],`
			}
			body += fmt.Sprintf(`%q:%s}`, name, v)
			got := r.chat(t, body)
			e := errorOf(t, got.body)
			param, _ := e["param"].(string)
			named := strings.HasPrefix(param, name) || name == "continue_final_message" && param != "" || name == "weir" && param == contract.HeaderSLO
			if got.status != 400 || !named {
				t.Errorf("%s: %d %s", body, got.status, got.body)
			}
		}
	}
}

// TestHeadersTwice: no header of Weir's is taken from two, whichever is empty.
func TestHeadersTwice(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	r := newRig(t, nil, d)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, name := range []string{contract.HeaderMode, contract.HeaderPrivacy, contract.HeaderSLO, contract.HeaderDeadline, contract.HeaderMaxCost,
		contract.HeaderSession, contract.HeaderExplain, contract.HeaderIdempotency, contract.HeaderOperation, contract.HeaderAttempt, contract.HeaderKeyID} {
		for _, values := range [][]string{{"", "1"}, {"1", ""}, {"", ""}} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.server.URL+"/v1/chat/completions", strings.NewReader(ask1))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+r.key)
			req.Header.Set("Content-Type", "application/json")
			req.Header[name] = values
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if e := errorOf(t, string(body)); resp.StatusCode != 400 || e["param"] != name {
				t.Errorf("%s %q: %d %s", name, values, resp.StatusCode, body)
			}
		}
	}
	if n := d.decodes.Load(); n != 0 {
		t.Errorf("%d requests reached the instance", n)
	}
}

func TestBadHeaders(t *testing.T) {
	r := newRig(t, nil, newInstance(t, "d", "mixed"))
	tests := []struct {
		name, value string
		status      int
		reason      string
	}{
		{contract.HeaderMode, "fast", 400, ""},
		{contract.HeaderMode, "edge-only", 503, "edge_unavailable"},
		{contract.HeaderPrivacy, "secret", 400, ""},
		{contract.HeaderPrivacy, "local-only", 503, "local_only_unavailable"},
		{contract.HeaderSLO, "platinum", 400, ""},
		{contract.HeaderDeadline, "soon", 400, ""},
		{contract.HeaderDeadline, "-5", 400, ""},
		{contract.HeaderMaxCost, "cheap", 400, ""},
		{contract.HeaderExplain, "perhaps", 400, ""},
		{contract.HeaderSession, strings.Repeat("s", 200), 400, ""},
		{contract.HeaderIdempotency, strings.Repeat("s", 200), 400, ""},
		{contract.HeaderOperation, contract.NewID(), 400, ""},
		{contract.HeaderAttempt, contract.NewID(), 400, ""},
		{contract.HeaderKeyID, "abcd", 400, ""},
		{"Content-Type", "text/plain", 415, ""},
	}
	for _, tt := range tests {
		got := r.chat(t, ask1, tt.name, tt.value)
		e := errorOf(t, got.body)
		if got.status != tt.status || e["param"] != tt.name || got.header.Get(contract.HeaderReason) != tt.reason {
			t.Errorf("%s %s: %d %s (reason %q)", tt.name, tt.value, got.status, got.body, got.header.Get(contract.HeaderReason))
		}
	}
	for _, mode := range []string{"auto", "cloud-only", "prefer-edge", "prefer-cloud"} {
		want := map[bool]string{true: "client_mode", false: "edge_unavailable"}[strings.Contains(mode, "cloud")]
		if got := r.chat(t, ask1, contract.HeaderMode, mode); got.status != 200 || got.header.Get(contract.HeaderReason) != want {
			t.Errorf("mode %s: %d reason %q, want %q", mode, got.status, got.header.Get(contract.HeaderReason), want)
		}
	}
}

func TestKeys(t *testing.T) {
	r := newRig(t, nil, newInstance(t, "d", "mixed"))
	for _, key := range []string{"", "x", "wk_a_b", r.key + "x", r.key[:len(r.key)-1] + "!", strings.Repeat("k", 60000)} {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
			got := r.do(t, http.MethodPost, path, key, ask1)
			if e := errorOf(t, got.body); got.status != 401 || e["code"] != "invalid_api_key" || key != "" && strings.Contains(got.body, key) {
				t.Errorf("key %.20q: %d %s", key, got.status, got.body)
			}
		}
		if got := r.do(t, http.MethodGet, "/v1/models", key, ""); got.status != 401 {
			t.Errorf("key %.20q lists models: %d", key, got.status)
		}
	}
	if got := r.do(t, http.MethodPost, "/v1/chat/completions", r.narrow, ask1); got.status != 404 || errorOf(t, got.body)["code"] != "model_not_found" {
		t.Errorf("a model that the key does not allow: %d %s", got.status, got.body)
	}
	if strings.Contains(r.log.String(), r.key) || strings.Contains(r.log.String(), "is the light on") {
		t.Error("the log shows a key or a prompt")
	}
}

func TestUnknownPaths(t *testing.T) {
	r := newRig(t, nil, newInstance(t, "d", "mixed"))
	for _, tt := range []struct {
		method, path string
		status       int
	}{{"GET", "/", 404}, {"GET", "/v1", 404}, {"POST", "/v1/embeddings", 404}, {"GET", "/v1/chat/completions", 405}, {"DELETE", "/v1/models", 405}, {"GET", "/v1/models/", 404}} {
		got := r.do(t, tt.method, tt.path, r.key, "")
		if errorOf(t, got.body); got.status != tt.status || got.header.Get(contract.HeaderRequestID) == "" {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, got.status, got.body)
		}
	}
}

// TestBodyLimit: a body beyond the limit is refused, not read to its end.
func TestBodyLimit(t *testing.T) {
	r := newRig(t, nil, newInstance(t, "d", "mixed"))
	got := r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"`+strings.Repeat("a", openai.MaxBody)+`"}]}`)
	if got.status != 413 || errorOf(t, got.body)["code"] != "request_too_large" {
		t.Errorf("answer %d %.200s", got.status, got.body)
	}
}

// TestNothingReady: a pool without a ready instance is a 503 with a time to
// come back, not a hang.
func TestNothingReady(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	r := newRig(t, nil, d)
	d.CloseClientConnections()
	d.Listener.Close()
	await(t, "instance gone", func() bool { return !r.opts.Pool.Status()[0].Ready })
	got := r.chat(t, ask1)
	if got.status != 503 || errorOf(t, got.body)["code"] != "no_instance_available" || got.header.Get("Retry-After") != "1" || got.header.Get(contract.HeaderReason) != "cloud_error" {
		t.Errorf("answer %d %v %s", got.status, got.header, got.body)
	}
	if rows := r.ledger(t); len(rows) != 0 {
		t.Errorf("ledger %+v, want no row without an attempt", rows)
	}
}

func TestClasses(t *testing.T) {
	r := newRig(t, nil, newInstance(t, "d", "mixed"))
	for body, want := range map[string]string{ask1: "gold", strings.Replace(ask1, `{`, `{"weir":{"slo":"slow"},`, 1): "slow"} {
		if got := r.chat(t, body); got.status != 200 {
			t.Fatalf("answer %d %s", got.status, got.body)
		}
		rows := r.ledger(t)
		if last := rows[len(rows)-1]; last.Class != want || last.Outcome != tenants.OutcomeOK {
			t.Errorf("class %q, want %q", last.Class, want)
		}
	}
}
