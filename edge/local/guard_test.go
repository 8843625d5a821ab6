package local_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// Whatever is wrong with a request, the answer is an OpenAI error that names
// the member or header, with the contract around it; never a 500.
func TestBadInput(t *testing.T) {
	n := startNode(t, nil)
	const chat = "/v1/chat/completions"
	body := func(extra string) string { return `{"model":"auto",` + hello + extra + `}` }
	for _, tt := range []struct {
		name, path, body string
		headers          []string
		status           int
		param            string
	}{
		{"empty body", chat, "", nil, 400, ""},
		{"malformed", chat, `{"model":`, nil, 400, ""},
		{"a list", chat, `[]`, nil, 400, ""},
		{"null", chat, `null`, nil, 400, ""},
		{"two objects", chat, `{} {}`, nil, 400, ""},
		{"not UTF-8", chat, "{\"model\":\"\xff\"}", nil, 400, ""},
		{"no model", chat, `{` + hello + `}`, nil, 400, "model"},
		{"unknown model", chat, `{"model":"gpt-9",` + hello + `}`, nil, 404, "model"},
		{"model of a wrong type", chat, `{"model":7,` + hello + `}`, nil, 400, "model"},
		{"no messages", chat, `{"model":"auto"}`, nil, 400, "messages"},
		{"empty messages", chat, `{"model":"auto","messages":[]}`, nil, 400, "messages"},
		{"message is no object", chat, `{"model":"auto","messages":[1]}`, nil, 400, "messages[0]"},
		{"unknown role", chat, `{"model":"auto","messages":[{"role":"king","content":"x"}]}`, nil, 400, "messages[0].role"},
		{"no content", chat, `{"model":"auto","messages":[{"role":"user"}]}`, nil, 400, "messages[0].content"},
		{"picture", chat, `{"model":"auto","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, nil, 400, "messages[0].content[0].type"},
		{"temperature", chat, body(`,"temperature":9`), nil, 400, "temperature"},
		{"stream", chat, body(`,"stream":"yes"`), nil, 400, "stream"},
		{"max_tokens", chat, body(`,"max_tokens":0`), nil, 400, "max_tokens"},
		{"seed", chat, body(`,"seed":"x"`), nil, 400, "seed"},
		{"stop", chat, body(`,"stop":[1]`), nil, 400, "stop"},
		{"top_logprobs alone", chat, body(`,"top_logprobs":2`), nil, 400, "top_logprobs"},
		{"prompt list", "/v1/completions", `{"model":"auto","prompt":["a","b"]}`, nil, 400, "prompt"},
		{"weir no object", chat, body(`,"weir":1`), nil, 400, "weir"},
		{"weir unknown member", chat, body(`,"weir":{"speed":1}`), nil, 400, "weir.speed"},
		{"weir mode", chat, body(`,"weir":{"mode":"fast"}`), nil, 400, "weir.mode"},
		{"weir privacy of a wrong type", chat, body(`,"weir":{"privacy":[]}`), nil, 400, "weir.privacy"},
		{"draft from an application", chat, body(`,"weir":{"draft":{"text":"x","reason":"confident"}}`), nil, 400, "weir.draft"},
		{"mode", chat, body(""), []string{"X-Weir-Mode", "quick"}, 400, "X-Weir-Mode"},
		{"privacy", chat, body(""), []string{"X-Weir-Privacy", "secret"}, 400, "X-Weir-Privacy"},
		{"deadline", chat, body(""), []string{"X-Weir-Deadline-Ms", "soon"}, 400, "X-Weir-Deadline-Ms"},
		{"negative deadline", chat, body(""), []string{"X-Weir-Deadline-Ms", "-1"}, 400, "X-Weir-Deadline-Ms"},
		{"cost", chat, body(""), []string{"X-Weir-Max-Cost-Usd", "-1"}, 400, "X-Weir-Max-Cost-Usd"},
		{"slo", chat, body(""), []string{"X-Weir-Slo", "gold"}, 400, "X-Weir-Slo"},
		{"explain", chat, body(""), []string{"X-Weir-Explain", "maybe"}, 400, "X-Weir-Explain"},
		{"mode against model", chat, `{"model":"hub-cloud",` + hello + `}`, []string{"X-Weir-Mode", "edge-only"}, 400, "model"},
		{"content type", chat, body(""), []string{"Content-Type", "text/plain"}, 415, "Content-Type"},
		{"no content type", chat, body(""), []string{"Content-Type", ""}, 415, "Content-Type"},
		{"foreign host", chat, body(""), []string{"Host", "evil.example"}, 421, "Host"},
		{"foreign host that ends well", chat, body(""), []string{"Host", "localhost.evil.example"}, 421, "Host"},
		{"foreign origin", chat, body(""), []string{"Origin", "https://evil.example"}, 403, "Origin"},
		{"no key", chat, body(""), []string{"Authorization", ""}, 401, ""},
		{"not a bearer", chat, body(""), []string{"Authorization", "Basic eDp5"}, 401, ""},
		{"not a key", chat, body(""), []string{"Authorization", "Bearer sk-123"}, 401, ""},
		{"unknown key", chat, body(""), []string{"Authorization", "Bearer wk_abcdef_" + strings.Repeat("a", 43)}, 401, ""},
		{"unknown path", "/v1/embeddings", body(""), nil, 404, ""},
		{"wrong method", "/v1/models", body(""), nil, 405, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n.t = t
			a := n.send(tt.path, tt.body, tt.headers...)
			if a.status != tt.status || a.errAt != tt.param || a.errCode == "" || !a.hasWeir {
				t.Errorf("status %d param %q code %q weir %v", a.status, a.errAt, a.errCode, a.hasWeir)
			}
			if a.header.Get("X-Request-Id") == "" {
				t.Error("no X-Request-Id")
			}
		})
	}
	if len(n.worker.Seen()) != 0 || len(n.cloud.Seen()) != 0 {
		t.Error("a bad request reached a model")
	}
}

// A 10 MB prompt is read; whether it fits is the model's to say. A body beyond
// the limit is refused before it is parsed.
func TestLargePrompt(t *testing.T) {
	n := startNode(t, nil)
	n.worker.Set(workertest.Reply{Status: 400, Code: "context_length_exceeded"})
	a := n.send("/v1/chat/completions", `{"model":"hub-edge","messages":[{"role":"user","content":"`+strings.Repeat("x", 10<<20)+`"}]}`)
	if a.status != 400 || a.errCode != "context_length_exceeded" || a.errAt != "messages" {
		t.Errorf("10 MB: status %d code %s param %s", a.status, a.errCode, a.errAt)
	}
	a = n.send("/v1/chat/completions", strings.Repeat(" ", openai.MaxBody+1))
	if a.status != 413 || a.errCode != "request_too_large" {
		t.Errorf("over the limit: status %d code %s", a.status, a.errCode)
	}
}

// A prompt that is surely beyond every context is refused here, and what only
// the edge cannot take goes to the cloud without asking it.
func TestPromptBeyondEveryContext(t *testing.T) {
	n := startNode(t, nil)
	s := n.cloud.DefaultSnapshot(2)
	for i := range s.Models {
		s.Models[i].ContextTokens = 4096
	}
	n.cloud.SetSnapshot(t, s)
	n.poll()
	prompt := func(tokens int) string { return strings.Repeat("x", 128*tokens) }
	for _, tt := range []struct {
		name, path, member, param, mode, extra string
		tokens                                 int
		status                                 int
		asked                                  int
	}{
		{"chat", "/v1/chat/completions", `"messages":[{"role":"user","content":%q}]`, "messages", "", "", 4097, 400, 0},
		{"stream", "/v1/chat/completions", `"messages":[{"role":"user","content":%q}]`, "messages", "", `,"stream":true`, 4097, 400, 0},
		{"text", "/v1/completions", `"prompt":%q`, "prompt", "", "", 4097, 400, 0},
		{"the cloud alone", "/v1/chat/completions", `"messages":[{"role":"user","content":%q}]`, "messages", "cloud-only", "", 4097, 400, 0},
		{"the edge alone", "/v1/chat/completions", `"messages":[{"role":"user","content":%q}]`, "messages", "edge-only", "", 4097, 400, 0},
		{"fits the cloud", "/v1/chat/completions", `"messages":[{"role":"user","content":%q}]`, "", "", "", 4096, 200, 1},
		{"a bound of the answer is the cloud's to cut", "/v1/chat/completions", `"messages":[{"role":"user","content":%q}]`, "", "", `,"max_tokens":9000`, 4000, 200, 1},
	} {
		n.t = t
		edge, cloud := len(n.worker.Seen()), len(n.cloud.Seen())
		a := n.send(tt.path, `{"model":"auto",`+fmt.Sprintf(tt.member, prompt(tt.tokens))+tt.extra+`}`, "X-Weir-Mode", tt.mode)
		if a.status != tt.status || a.errAt != tt.param || a.weir.Reason != "capability" || tt.status == 400 && a.errCode != openai.CodeContextLength {
			t.Errorf("%s: status %d, code %q, param %q, %+v", tt.name, a.status, a.errCode, a.errAt, a.weir)
		}
		if len(n.worker.Seen()) != edge || len(n.cloud.Seen()) != cloud+tt.asked {
			t.Errorf("%s: the edge was asked %d times, the cloud %d", tt.name, len(n.worker.Seen())-edge, len(n.cloud.Seen())-cloud)
		}
	}
}

// A client that announces a body and does not send it holds nothing for long.
func TestBodyThatDoesNotCome(t *testing.T) {
	n := startNode(t, func(o *local.Options) { o.BodyTime = 30 * time.Millisecond })
	for head, status := range map[string]int{
		"Host: localhost\r\nAuthorization: Bearer " + n.cloud.Key.Reveal(): 400,
		"Host: localhost":    401,
		"Host: evil.example": 421,
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\n%s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", head)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != status {
			t.Errorf("%s: got %+v, %v", head, resp, err)
		}
	}
}

// A request that contradicts itself is not worth a retry.
func TestLocalOnlyAgainstTheCloud(t *testing.T) {
	n := startNode(t, nil)
	for _, body := range []string{`{"model":"hub-cloud",` + hello + `}`, `{"model":"auto","weir":{"mode":"cloud-only"},` + hello + `}`} {
		a := n.send("/v1/chat/completions", body, "X-Weir-Privacy", "local-only")
		if a.status != 503 || a.weir.Reason != "local_only_unavailable" || a.header.Get("Retry-After") != "" || a.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: status %d reason %s headers %v", body, a.status, a.weir.Reason, a.header)
		}
	}
}

// What the cloud refuses because the request is wrong is no fault of the cloud.
func TestCloudRefusesTheRequest(t *testing.T) {
	n := startNode(t, nil)
	n.cloud.Answer(func(w http.ResponseWriter, _ *http.Request) {
		openai.BadRequest("messages", openai.CodeContextLength, "too long").Write(w, nil)
	})
	a := n.chat("", "X-Weir-Mode", "cloud-only")
	if a.status != 400 || a.errAt != "messages" || a.weir.Reason != "client_mode" {
		t.Errorf("status %d param %q reason %s", a.status, a.errAt, a.weir.Reason)
	}
}

func TestAllowedOriginAndPreflight(t *testing.T) {
	n := startNode(t, func(o *local.Options) {
		o.AllowedOrigins, o.AllowedHosts = []string{"https://app.example"}, []string{"hub.lan"}
	})
	a := n.chat("", "Origin", "https://app.example")
	if a.status != 200 || a.header.Get("Access-Control-Allow-Origin") != "https://app.example" || !strings.Contains(a.header.Get("Access-Control-Expose-Headers"), "X-Weir-Tier") {
		t.Errorf("allowed origin: %d %v", a.status, a.header)
	}
	if a = n.chat("", "Host", "hub.lan:7420"); a.status != 200 {
		t.Errorf("allowed host: %d", a.status)
	}
	req, _ := http.NewRequest(http.MethodOptions, n.url+"/v1/chat/completions", nil)
	req.Header.Set("Origin", "https://app.example")
	req.Header.Set("Access-Control-Request-Method", "POST")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 204 || !strings.Contains(resp.Header.Get("Access-Control-Allow-Headers"), "X-Weir-Mode") {
		t.Errorf("preflight: %d %v", resp.StatusCode, resp.Header)
	}
}

func TestAnonymous(t *testing.T) {
	n := startNode(t, func(o *local.Options) { o.AllowAnonymous = true })
	n.worker.Set(unsure)
	for _, auth := range []string{"", "Bearer sk-anything"} {
		if a := n.chat("", "Authorization", auth); a.status != 200 || a.weir.Tier != "cloud" {
			t.Errorf("%q: %d %+v", auth, a.status, a.weir)
		}
	}
	if a := n.chat("", "Authorization", "Bearer wk_abcdef_"+strings.Repeat("a", 43)); a.status != 401 {
		t.Errorf("a wrong key is not anonymous: %d", a.status)
	}
	for _, s := range n.cloud.Seen() {
		if s.Header.Get("X-Weir-Key-Id") != "" {
			t.Error("anonymous use has a key id")
		}
	}
	if r := n.rows.all()[0]; r.KeyID != "" || r.DeviceID != cloudtest.Device {
		t.Errorf("row %+v", r)
	}
}

// The snapshot decides about keys, also when the cloud is away.
func TestKeyStates(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*tenants.Snapshot)
		status int
		code   string
	}{
		{"revoked", func(s *tenants.Snapshot) { s.Keys[0].State = tenants.Revoked }, 401, "invalid_api_key"},
		{"expired", func(s *tenants.Snapshot) { s.Keys[0].ExpiresAt = time.Now().Add(-time.Minute) }, 401, "invalid_api_key"},
		{"suspended", func(s *tenants.Snapshot) { s.Tenants[0].State = tenants.Suspended }, 403, "tenant_suspended"},
		{"snapshot expired", func(s *tenants.Snapshot) { s.ExpiresAt = time.Now().Add(-time.Minute) }, 503, "snapshot_expired"},
		{"model not allowed", func(s *tenants.Snapshot) { s.Keys[0].Models = []string{"hub-edge"} }, 404, "model_not_found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := startNode(t, nil)
			s := n.cloud.DefaultSnapshot(2)
			tt.change(s)
			n.cloud.SetSnapshot(t, s)
			n.poll()
			if a := n.chat(""); a.status != tt.status || a.errCode != tt.code {
				t.Errorf("status %d code %s", a.status, a.errCode)
			}
		})
	}
}

func TestTenantPolicy(t *testing.T) {
	n := startNode(t, nil)
	s := n.cloud.DefaultSnapshot(2)
	low := .01 // below the confidence in what is unsure
	s.Policies = []tenants.Policy{{TenantID: cloudtest.Tenant, Threshold: &low}}
	n.cloud.SetSnapshot(t, s)
	n.poll()
	n.worker.Set(unsure)
	if a := n.chat(""); a.weir.Tier != "edge" || a.weir.Reason != "confident" {
		t.Errorf("%+v", a.weir)
	}
	s = n.cloud.DefaultSnapshot(3)
	s.Policies = []tenants.Policy{{TenantID: cloudtest.Tenant, Class: "standard", Mode: "edge-only"}}
	n.cloud.SetSnapshot(t, s)
	n.poll()
	if a := n.chat(""); a.weir.Tier != "edge" || a.weir.Reason != "client_mode" {
		t.Errorf("policy edge-only: %+v", a.weir)
	}
	if a := n.chat("", "X-Weir-Mode", "cloud-only"); a.weir.Tier != "cloud" {
		t.Errorf("the client's own mode: %+v", a.weir)
	}
}

func TestModelsAndExplain(t *testing.T) {
	n := startNode(t, nil)
	raw := n.get("/v1/models", 200)
	for _, name := range []string{"auto", "hub-edge", "hub-cloud"} {
		if strings.Count(raw, fmt.Sprintf(`"id":%q`, name)) != 1 {
			t.Errorf("models: %s", raw)
		}
		n.get("/v1/models/"+name, 200)
	}
	n.get("/v1/models/nope", 404)
	n.worker.Set(unsure)
	id := n.chat("").header.Get("X-Request-Id")
	var e struct {
		ID, Outcome, Via string
		First            string `json:"asked_first"`
		Second           string `json:"asked_second"`
		Judged           bool
		Weir             struct{ Tier, Reason string }
		Scores           *struct{ Signals struct{ Tokens int } }
	}
	if err := json.Unmarshal([]byte(n.get("/v1/weir/requests/"+id, 200)), &e); err != nil {
		t.Fatal(err)
	}
	if e.ID != id || e.First != "edge" || e.Second != "cloud" || !e.Judged || e.Weir.Tier != "cloud" || e.Via != "quic" || e.Scores == nil || e.Scores.Signals.Tokens != 4 {
		t.Errorf("explained %+v", e)
	}
	n.get("/v1/weir/requests/nonsense", 400)
	n.get("/v1/weir/requests/0191d2a0-0000-7000-8000-00000000ffff", 404)

	s := n.cloud.DefaultSnapshot(2)
	s.Keys[0].Scopes = nil
	n.cloud.SetSnapshot(t, s)
	n.poll()
	if raw = n.get("/v1/weir/requests/"+id, 200); strings.Contains(raw, "scores") {
		t.Error("scores are shown without the scope")
	}
}
