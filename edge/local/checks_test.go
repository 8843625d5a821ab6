package local_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/internal/openai"
)

const roomFormat = `,"response_format":{"type":"json_schema","json_schema":{"name":"room","schema":` +
	`{"type":"object","required":["room"],"additionalProperties":false,"properties":{"room":{"$ref":"#/$defs/room"}},"$defs":{"room":{"enum":["hall","attic"]}}}}}`

// The form that a client asks for is hard evidence: what breaks it goes to the
// cloud however sure the edge is.
func TestFormOfAnswers(t *testing.T) {
	n := startStreaming(t, nil)
	object := `,"response_format":{"type":"json_object"}`
	for _, tt := range []struct {
		name, text, format, mode, privacy string
		tier, reason                      string
	}{
		{"fits", `{"room":"hall"}`, roomFormat, "", "", "edge", "confident"},
		{"another value", `{"room":"moon"}`, roomFormat, "", "", "cloud", "validator_failed"},
		{"no JSON", `the hall, I think`, roomFormat, "", "", "cloud", "validator_failed"},
		{"an object", `{"a": 1}`, object, "", "", "edge", "confident"},
		{"a list is no object", `[1]`, object, "", "", "cloud", "validator_failed"},
		{"text is text", `[1]`, `,"response_format":{"type":"text"}`, "", "", "edge", "confident"},
		{"nobody else may try", `{"room":"moon"}`, roomFormat, "edge-only", "", "edge", "validator_failed"},
		{"local-only", `{"room":"moon"}`, roomFormat, "", "local-only", "edge", "validator_failed"},
		{"local-only, fits", `{"room":"attic"}`, roomFormat, "", "local-only", "edge", "local_only"},
	} {
		for _, stream := range []bool{false, true} {
			for _, refuses := range []bool{false, true} {
				n.t = t
				n.worker.Set(workertest.Reply{Text: tt.text, Logprob: -.001, NoFormat: refuses})
				cloud := len(n.cloud.Seen())
				a := n.chat(fmt.Sprintf(`%s,"stream":%v`, tt.format, stream), "X-Weir-Mode", tt.mode, "X-Weir-Privacy", tt.privacy)
				if a.status != 200 || string(a.weir.Tier) != tt.tier || string(a.weir.Reason) != tt.reason || tt.tier == "edge" && a.text != tt.text {
					t.Errorf("%s, stream %v: status %d %q %+v", tt.name, stream, a.status, a.text, a.weir)
				}
				if asked := n.cloud.Seen()[cloud:]; len(asked) > 0 && !strings.Contains(string(asked[0].Body), `"response_format"`) {
					t.Errorf("%s: the cloud was not told the form", tt.name)
				}
			}
		}
	}
}

// Where no tier can meet the form the client hears it: a refusal where the cloud
// finds the request wrong, the reason validator_failed where it gave nothing.
func TestFormThatNobodyMeets(t *testing.T) {
	n := startStreaming(t, nil)
	refuse := func(status int, code, param string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			(&openai.Error{Status: status, Type: openai.TypeInvalidRequest, Code: code, Param: param, Message: "no"}).Write(w, nil)
		}
	}
	for _, tt := range []struct {
		name, text    string
		cloud         http.HandlerFunc
		status        int
		param, reason string
	}{
		{name: "refused", text: "anomure", cloud: refuse(400, openai.CodeUnsupported, "response_format"), status: 400, param: "response_format", reason: "validator_failed"},
		{name: "a cloud in trouble", text: "anomure", cloud: refuse(503, "no_instance_available", ""), status: 200, reason: "validator_failed"},
		{name: "a cloud at its limits", text: "anomure", cloud: refuse(429, "rate_limited", ""), status: 200, reason: "validator_failed"},
		{name: "met", text: `{"room":"hall"}`, cloud: refuse(400, openai.CodeUnsupported, "response_format"), status: 200, reason: "confident"},
	} {
		for _, stream := range []bool{false, true} {
			n.t = t
			n.worker.Set(workertest.Reply{Text: tt.text, Logprob: -.001, NoFormat: true})
			n.cloud.Answer(tt.cloud)
			a := n.chat(fmt.Sprintf(`%s,"stream":%v`, roomFormat, stream))
			if a.status != tt.status || a.errAt != tt.param || string(a.weir.Reason) != tt.reason || tt.status == 400 && a.text != "" {
				t.Errorf("%s, stream %v: status %d, param %q, text %q, %+v", tt.name, stream, a.status, a.errAt, a.text, a.weir)
			}
		}
	}
}

// An answer cut at the client's own limit is what it asked for.
func TestFormOfShortenedAnswers(t *testing.T) {
	n := startStreaming(t, nil)
	n.worker.Set(workertest.Reply{Text: `{"room": `, Logprob: -.001, Finish: "length"})
	if a := n.chat(roomFormat + `,"max_tokens":3`); a.weir.Tier != "edge" {
		t.Errorf("cut by the client: %+v", a.weir)
	}
	if a := n.chat(roomFormat); a.weir.Tier != "cloud" || a.weir.Reason != "validator_failed" {
		t.Errorf("cut by the model: %+v", a.weir)
	}
}

func TestBadForms(t *testing.T) {
	n := startNode(t, nil)
	schema := func(s string) string {
		return `,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":` + s + `}}`
	}
	for _, tt := range []struct{ extra, param string }{
		{`,"response_format":7`, "response_format"},
		{`,"response_format":{"type":"xml"}`, "response_format.type"},
		{`,"response_format":{"type":"json_schema"}`, "response_format.json_schema"},
		{schema(`{"type":"text"}`), "response_format.json_schema.schema"},
		{schema(`[]`), "response_format.json_schema.schema"},
		{schema(strings.Repeat(`{"not":`, 100) + `true` + strings.Repeat(`}`, 100)), "response_format.json_schema.schema"},
		{schema(`{"anyOf":[` + strings.Repeat(`true,`, 20_000) + `true]}`), "response_format.json_schema.schema"},
		{`,"tools":{}`, "tools"},
		{`,"tools":[{"type":"function","function":{}}]`, "tools[0].function.name"},
		{`,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":7}}}]`, "tools[0].function.parameters"},
		{`,"tools":[` + strings.Repeat(`{"type":"function","function":{"name":"f"}},`, 200) + `{"type":"function","function":{"name":"f"}}]`, "tools"},
	} {
		if a := n.chat(tt.extra); a.status != 400 || a.errAt != tt.param {
			t.Errorf("%.90s: status %d, param %q", tt.extra, a.status, a.errAt)
		}
	}
	if len(n.worker.Seen()) != 0 || len(n.cloud.Seen()) != 0 {
		t.Error("a bad request reached a model")
	}
	// What may be right, but cannot be checked here, is the cloud's.
	other := schema(`{"if":{"type":"string"},"then":{"maxLength":2}}`)
	if a := n.chat(other); a.weir.Tier != "cloud" || a.weir.Reason != "capability" {
		t.Errorf("%d %+v", a.status, a.weir)
	}
	if a := n.chat(other, "X-Weir-Privacy", "local-only"); a.status != 503 || a.weir.Reason != "local_only_unavailable" {
		t.Errorf("local-only: %d %+v", a.status, a.weir)
	}
}

// Tool calls of the edge pass only with arguments that fit the tool's schema,
// and are never torn.
func TestToolCalls(t *testing.T) {
	n := startStreaming(t, nil)
	n.worker.SayNothing()
	eventually(t, "a worker that says nothing of itself", func() bool { h, ok := n.health(); return ok && h.Context == 0 })
	tools := `,"tools":[{"type":"function","function":{"name":"light","parameters":{"type":"object","required":["on"],"properties":{"on":{"type":"boolean"}}}}}]`
	call := func(name, arguments string) string {
		q, _ := json.Marshal(arguments)
		return fmt.Sprintf(`[{"index":0,"id":"c1","type":"function","function":{"name":%q,"arguments":%s}}]`, name, q)
	}
	for _, tt := range []struct{ name, calls, text, tier, reason string }{
		{"fits", call("light", `{"on":true}`), "", "edge", "confident"},
		{"does not fit", call("light", `{"on":"yes"}`), "", "cloud", "validator_failed"},
		{"no JSON", call("light", `{"on":tr`), "", "cloud", "validator_failed"},
		{"was not offered", call("bomb", `{}`), "", "cloud", "validator_failed"},
		{"no call at all", "", "from the edge", "edge", "confident"},
	} {
		for _, stream := range []bool{false, true} {
			n.worker.Set(workertest.Reply{Text: tt.text, Logprob: -.001, Calls: tt.calls})
			a := n.chat(fmt.Sprintf(`%s,"stream":%v`, tools, stream))
			if string(a.weir.Tier) != tt.tier || string(a.weir.Reason) != tt.reason {
				t.Errorf("%s, stream %v: %+v", tt.name, stream, a.weir)
			}
			all := strings.Join(a.events, "") + string(a.body["choices"])
			if sent := strings.Contains(all, `"tool_calls":[`) && strings.Contains(all, `"finish_reason":"tool_calls"`); tt.tier == "edge" && sent != (tt.calls != "") {
				t.Errorf("%s, stream %v: %s", tt.name, stream, all)
			}
		}
	}
}

// The tenant's own validators.
func TestValidatorsOfTheTenant(t *testing.T) {
	n := startStreaming(t, nil)
	n.setHandoff(`{"name":"p","validate":{"pattern":"^[a-z ]+$","refusals":true}}`, false)
	for text, tier := range map[string]string{"from the edge": "edge", "4711": "cloud", "I cannot help with that": "cloud"} {
		n.worker.Set(workertest.Reply{Text: text, Logprob: -.001})
		for _, stream := range []string{"", `,"stream":true`} {
			a := n.chat(stream)
			if string(a.weir.Tier) != tier || tier == "cloud" && a.weir.Reason != "validator_failed" {
				t.Errorf("%q%s: %+v", text, stream, a.weir)
			}
		}
	}
	// Where the limit keeps the request here the limit is the reason.
	n.worker.Set(workertest.Reply{Text: "4711", Logprob: -.001})
	if a := n.chat("", "X-Weir-Privacy", "local-only"); a.text != "4711" || a.weir.Reason != "local_only" {
		t.Errorf("%+v", a.weir)
	}
}
