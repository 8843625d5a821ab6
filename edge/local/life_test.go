package local_test

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

type edPublic = ed25519.PublicKey

var (
	confident = workertest.Reply{Text: "from the edge", Logprob: -.001}
	unsure    = workertest.Reply{Text: "from the edge", Logprob: -1}
)

// Every mode with every kind of local answer, whole and streamed: who answers,
// with which reason, and what the contract says about it.
func TestWhoAnswers(t *testing.T) {
	n := startNode(t, nil)
	for _, tt := range []struct {
		name             string
		local            workertest.Reply
		model, mode      string
		privacy          string
		tier, reason     string
		attempts         int
		edgeRan, cloudIn bool
	}{
		{"sure", confident, "auto", "", "", "edge", "confident", 1, true, false},
		{"unsure", unsure, "auto", "auto", "any", "cloud", "low_confidence", 2, true, true},
		{"no signals", workertest.Reply{Text: "x y", NoProbs: true}, "auto", "", "", "cloud", "signal_unusable", 2, true, true},
		{"empty", workertest.Reply{Text: "", Logprob: -.001}, "auto", "", "", "cloud", "validator_failed", 2, true, true},
		{"edge only", unsure, "auto", "edge-only", "", "edge", "client_mode", 1, true, false},
		{"cloud only", confident, "auto", "cloud-only", "", "cloud", "client_mode", 1, false, true},
		{"prefer edge", unsure, "auto", "prefer-edge", "", "edge", "client_mode", 1, true, false},
		{"prefer cloud", confident, "auto", "prefer-cloud", "", "cloud", "client_mode", 1, false, true},
		{"edge's model", unsure, "hub-edge", "", "", "edge", "client_mode", 1, true, false},
		{"cloud's model", confident, "hub-cloud", "", "", "cloud", "client_mode", 1, false, true},
		{"local only", unsure, "auto", "", "local-only", "edge", "local_only", 1, true, false},
		{"too long for the edge", workertest.Reply{Status: 400, Code: openai.CodeContextLength}, "auto", "", "", "cloud", "capability", 1, true, true},
		{"edge fails", workertest.Reply{Status: 500}, "auto", "", "", "cloud", "edge_unavailable", 2, true, true},
		{"edge breaks off", workertest.Reply{Text: "a b c", Logprob: -.001, CutAt: 2}, "auto", "", "", "cloud", "edge_unavailable", 2, true, true},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", tt.name, stream), func(t *testing.T) {
				n.t = t
				n.worker.Set(tt.local)
				edgeBefore, cloudBefore := len(n.worker.Seen()), len(n.cloud.Seen())
				a := n.send("/v1/chat/completions", fmt.Sprintf(`{"model":%q,%s,"stream":%v}`, tt.model, hello, stream),
					"X-Weir-Mode", tt.mode, "X-Weir-Privacy", tt.privacy)
				wantText, wantModel := "from the edge", "hub-edge"
				if tt.tier == "cloud" {
					wantText, wantModel = "from the cloud", "hub-cloud"
				}
				if a.status != 200 || a.text != wantText || a.model != wantModel || a.done != stream {
					t.Fatalf("status %d text %q model %q done %v", a.status, a.text, a.model, a.done)
				}
				if string(a.weir.Tier) != tt.tier || string(a.weir.Reason) != tt.reason || a.weir.Model != wantModel || a.weir.Attempts != tt.attempts {
					t.Errorf("weir object %+v", a.weir)
				}
				if tt.tier == "cloud" && a.weir.CloudTokens != 3 {
					t.Errorf("cloud tokens %d", a.weir.CloudTokens)
				}
				checkHeaders(t, a)
				if edge := len(n.worker.Seen()) > edgeBefore; edge != tt.edgeRan {
					t.Errorf("edge asked: %v", edge)
				}
				if cloud := len(n.cloud.Seen()) > cloudBefore; cloud != tt.cloudIn {
					t.Errorf("cloud asked: %v", cloud)
				}
			})
		}
	}
}

func checkHeaders(t *testing.T, a answer) {
	t.Helper()
	h := a.header
	if h.Get("X-Weir-Tier") != string(a.weir.Tier) || h.Get("X-Weir-Reason") != string(a.weir.Reason) || h.Get("X-Weir-Model") != a.weir.Model {
		t.Errorf("headers %v do not say what the weir object says: %+v", h, a.weir)
	}
	for _, name := range []string{"X-Request-Id", "X-Weir-Attempts", "X-Weir-Cost-Usd", "X-Weir-Policy", "Server-Timing", "Access-Control-Expose-Headers"} {
		if h.Get(name) == "" {
			t.Errorf("header %s is missing", name)
		}
	}
}

// What an escalation carries: the operation, the key id and never the key, the
// draft with its confidence, the options that are the cloud's, and a trace.
func TestWhatAnEscalationCarries(t *testing.T) {
	n := startNode(t, nil)
	n.worker.Set(unsure)
	a := n.chat(`,"temperature":0,"kv_transfer_params":{"x":1},"weir":{"mode":"auto","session":"s1","deadline_ms":15000}`, "X-Weir-Max-Cost-Usd", "0.5", "X-Weir-Slo", "standard", "X-Request-Id", "mine")
	if a.weir.Tier != "cloud" || a.weir.Confidence == nil || *a.weir.Confidence >= .75 || a.weir.EdgeTokens != 4 {
		t.Fatalf("weir object %+v", a.weir)
	}
	seen := n.cloud.Seen()[0]
	if seen.Proto != "HTTP/3.0" || seen.Peer.Name != cloudtest.Device || seen.Peer.Tenant != cloudtest.Tenant {
		t.Errorf("protocol %s from %+v", seen.Proto, seen.Peer)
	}
	if seen.Header.Get("X-Weir-Operation") != a.header.Get("X-Request-Id") || seen.Header.Get("X-Weir-Key-Id") != n.cloud.Key.ID {
		t.Errorf("headers %v", seen.Header)
	}
	var body struct {
		Model string
		KV    json.RawMessage `json:"kv_transfer_params"`
		Temp  *float64        `json:"temperature"`
		Weir  struct {
			Draft struct {
				Text, Reason string
				Confidence   float64
			}
			Mode     *string
			Session  string
			SLO      string
			Cost     float64 `json:"max_cost_usd"`
			Deadline int64   `json:"deadline_ms"`
		}
	}
	if err := json.Unmarshal(seen.Body, &body); err != nil {
		t.Fatal(err)
	}
	w := body.Weir
	if body.Model != "auto" || body.KV != nil || body.Temp == nil || w.Draft.Text != "from the edge" || w.Draft.Reason != "low_confidence" ||
		w.Draft.Confidence != *a.weir.Confidence || w.Mode != nil || w.Session != "s1" || w.SLO != "standard" || w.Cost != .5 ||
		w.Deadline <= 0 || w.Deadline > 15000 {
		t.Errorf("body %s", seen.Body)
	}
	everything := fmt.Sprint(seen) + n.log.String()
	if secret := n.cloud.Key.Secret.Reveal(); strings.Contains(everything, secret) {
		t.Error("the key's secret left the node or is in the log")
	}
	if strings.Contains(n.log.String(), "hello") {
		t.Error("the prompt is in the log")
	}
}

// What the worker is asked: always a stream with log-probabilities.
func TestLogprobsAreAskedAndStripped(t *testing.T) {
	n := startNode(t, nil)
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		for _, asked := range []bool{false, true} {
			for _, stream := range []bool{false, true} {
				body := fmt.Sprintf(`{"model":"auto",%s,"stream":%v}`, map[bool]string{true: hello + `,"logprobs":true`, false: hello}[asked], stream)
				if path == "/v1/completions" {
					body = fmt.Sprintf(`{"model":"auto","prompt":"hello","stream":%v%s}`, stream, map[bool]string{true: `,"logprobs":1`}[asked])
				}
				a := n.send(path, body)
				got := strings.Contains(strings.Join(a.events, "")+string(a.body["choices"]), `logprob":-0.001`) ||
					strings.Contains(strings.Join(a.events, "")+string(a.body["choices"]), `token_logprobs":[-0.001`)
				if a.text != "from the edge" || got != asked {
					t.Errorf("%s asked %v stream %v: text %q, log-probabilities shown: %v", path, asked, stream, a.text, got)
				}
			}
		}
	}
	for _, b := range n.worker.Seen() {
		if string(b["stream"]) != "true" || len(b["logprobs"]) == 0 || string(b["weir"]) != "" {
			t.Errorf("worker was asked %v", b)
		}
	}
}

func TestIncludeUsage(t *testing.T) {
	n := startNode(t, nil)
	a := n.chat(`,"stream":true,"stream_options":{"include_usage":true}`)
	last := a.events[len(a.events)-1]
	if !strings.Contains(last, `"usage":{"prompt_tokens":7,"completion_tokens":4,"total_tokens":11}`) || !strings.Contains(last, `"choices":[]`) || !a.hasWeir {
		t.Errorf("last chunk %s", last)
	}
	if a = n.chat(`,"stream":true`); strings.Contains(strings.Join(a.events, ""), `"usage":{`) {
		t.Error("usage was not asked for")
	}
}

// The cloud goes away or fails: the local answer stands, and says why.
func TestCloudFaultsWithALocalAnswer(t *testing.T) {
	n := startNode(t, nil)
	n.worker.Set(unsure)
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		reason string
	}{
		{"500", func(w http.ResponseWriter, _ *http.Request) { openai.Internal(nil).Write(w, nil) }, "cloud_error"},
		{"503", func(w http.ResponseWriter, _ *http.Request) {
			openai.Unavailable("busy", time.Second, "busy").Write(w, nil)
		}, "cloud_error"},
		{"401", func(w http.ResponseWriter, _ *http.Request) { openai.Unauthorized("revoked").Write(w, nil) }, "low_confidence"},
		{"quota", func(w http.ResponseWriter, _ *http.Request) {
			(&openai.Error{Status: 429, Type: openai.TypeQuota, Code: openai.CodeQuotaExhausted, Message: "spent"}).Write(w, nil)
		}, "budget"},
		{"nonsense", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502); _, _ = w.Write([]byte("<html>")) }, "cloud_error"},
		{"200 of nonsense", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }, "cloud_error"},
	} {
		n.cloud.Answer(tt.answer)
		for _, stream := range []string{"", `,"stream":true`} {
			a := n.chat(stream)
			if a.status != 200 || a.text != "from the edge" || string(a.weir.Reason) != tt.reason || a.weir.Tier != "edge" || a.weir.Attempts != 2 {
				t.Errorf("%s%s: status %d text %q weir %+v", tt.name, stream, a.status, a.text, a.weir)
			}
		}
	}
	n.cloud.Answer(func(w http.ResponseWriter, _ *http.Request) { // an error as the stream's first event
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"error\":{\"message\":\"no\",\"code\":\"x\"}}\n\n")
	})
	if a := n.chat(`,"stream":true`); a.text != "from the edge" || a.weir.Reason != "cloud_error" || !a.done {
		t.Errorf("error as first event: %+v", a)
	}
	n.cloud.Stop()
	eventually(t, "link down", func() bool { return n.link.Stats().State == uplink.Down })
	for _, stream := range []string{"", `,"stream":true`} {
		a := n.chat(stream)
		if a.status != 200 || a.text != "from the edge" || a.weir.Reason != "offline" || a.weir.Tier != "edge" || a.weir.Confidence == nil {
			t.Errorf("offline%s: status %d weir %+v", stream, a.status, a.weir)
		}
	}
	if a := n.chat("", "X-Weir-Mode", "cloud-only"); a.status != 503 || a.weir.Reason != "offline" || a.header.Get("Retry-After") == "" || a.header.Get("X-Weir-Reason") != "offline" {
		t.Errorf("cloud-only offline: %+v", a)
	}
	if a := n.chat("", "X-Weir-Mode", "prefer-cloud"); a.status != 200 || a.weir.Reason != "offline" || a.weir.Tier != "edge" {
		t.Errorf("prefer-cloud offline: %+v", a)
	}
}

// A stream that breaks after bytes were shown ends with an error event and no
// [DONE]; nothing is repeated or replaced.
func TestCloudBreaksMidStream(t *testing.T) {
	n := startNode(t, nil)
	n.worker.Set(unsure)
	shown := make(chan struct{})
	for _, how := range []string{"cut", "error event", "not JSON with weir"} {
		n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"hub-cloud","choices":[{"index":0,"delta":{"content":"par"}}]}`+"\n\n")
			_ = http.NewResponseController(w).Flush()
			switch how {
			case "cut":
				<-shown
				panic(http.ErrAbortHandler)
			case "error event":
				fmt.Fprint(w, `data: {"error":{"message":"worker died","type":"server_error","param":null,"code":"upstream_truncated"},`+
					`"weir":{"tier":"cloud","model":"hub-cloud","reason":"client_mode","cloud_tokens":7,"cost_usd":0.5,"attempts":2}}`+"\n\n")
			default:
				fmt.Fprint(w, `data: {"weir": broken "weir"`+"\n\n")
			}
		})
		n.onLine = func(line string) {
			if how == "cut" && strings.Contains(line, `"content":"par"`) {
				shown <- struct{}{}
			}
		}
		a := n.chat(`,"stream":true`)
		if a.status != 200 || a.text != "par" || a.done || a.errCode == "" || a.weir.Reason != "cloud_error" {
			t.Errorf("%s: status %d text %q done %v error %q weir %+v", how, a.status, a.text, a.done, a.errCode, a.weir)
		}
		if how == "error event" && (a.weir.CloudTokens != 7 || a.weir.CostUSD != 500_000_000 || a.weir.Tier != "cloud") {
			t.Errorf("the cloud's tokens and cost are lost: %+v", a.weir)
		}
	}
}

// A client that stops reading its stream loses it, and the cloud's end with it.
func TestClientThatDoesNotRead(t *testing.T) {
	n := startNode(t, func(o *local.Options) { o.WriteTime = 50 * time.Millisecond })
	ended := make(chan struct{})
	n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		w.Header().Set("Content-Type", "text/event-stream")
		event := `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"hub-cloud","choices":[{"index":0,"delta":{"content":"` +
			strings.Repeat("x", 64<<10) + `"}}]}` + "\n\n"
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, event); err != nil {
				return
			}
		}
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"model":"hub-cloud","stream":true,` + hello + `}`
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", n.cloud.Key.Reveal(), len(body), body)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the stream to a client that does not read goes on")
	}
}

func TestRecordsOneRowForEachLocalAttempt(t *testing.T) {
	n := startNode(t, nil)
	n.chat("")
	n.worker.Set(unsure)
	n.chat("")
	n.chat("", "X-Weir-Mode", "cloud-only")
	n.worker.Set(workertest.Reply{Text: "a b c", Logprob: -1, CutAt: 2})
	n.chat("", "X-Weir-Mode", "edge-only")
	var got []string
	for _, r := range n.rows.all() {
		if err := r.Validate(time.Now()); err != nil {
			t.Errorf("row %+v: %v", r, err)
		}
		got = append(got, fmt.Sprint(r.Outcome, " ", r.OutputTokens, " ", r.UsageSource, " ", r.KeyID == n.cloud.Key.ID))
	}
	want := []string{"ok 4 upstream true", "escalated 4 upstream true", "upstream_truncated 2 counted true"}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("rows %q, want %q", got, want)
	}
	if got := n.rows.all()[0]; got.Tier != tenants.Edge || got.Reason != "confident" {
		t.Errorf("row %+v", got)
	}
}

func TestHeartbeatsWhileHeld(t *testing.T) {
	n := startNode(t, func(o *local.Options) { o.Heartbeat = 20 * time.Millisecond })
	gate := make(chan struct{})
	n.worker.Set(workertest.Reply{Text: "late", Logprob: -.001, Gate: gate})
	open := sync.OnceFunc(func() { close(gate) })
	n.onLine = func(line string) {
		if strings.HasPrefix(line, ":") {
			open()
		}
	}
	a := n.chat(`,"stream":true`)
	if !a.comment || a.text != "late" || !a.done || a.weir.Reason != "confident" {
		t.Errorf("comment %v, %+v", a.comment, a)
	}
}
