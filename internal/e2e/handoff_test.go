package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// sums are prompts at which the bundled edge is sure at first and doubts its
// carry later: most, not all, are handed over, which depends on the host's
// arithmetic.
var sums = []string{"calculate 90 - 38", "9 + 6", "what is 8 plus 8", "760 minus 671", "calculate 822 + 850",
	"what do 456 and 527 make together", "take 7954 away from 8981", "calculate 921 + 241"}

// stream is what a client saw of a streamed answer.
type stream struct {
	operation, policy string
	text              string
	by                map[string]string // text by the model that spoke
	ids               map[string]bool
	finishes, dones   int
	weir              struct {
		Tier, Reason string
		HandoffToken int `json:"handoff_token"`
		CloudTokens  int `json:"cloud_tokens"`
		EdgeTokens   int `json:"edge_tokens"`
		Attempts     int
	}
}

func readStream(t *testing.T, h http.Header, body []byte) stream {
	t.Helper()
	s := stream{operation: h.Get("X-Request-Id"), policy: h.Get("X-Weir-Policy"), by: map[string]string{}, ids: map[string]bool{}}
	for line := range strings.Lines(string(body)) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]":
			s.dones++
			continue
		case s.dones > 0:
			t.Errorf("after the end: %s", data)
		}
		var c struct {
			ID, Model string
			Choices   []struct {
				Delta        struct{ Content string }
				FinishReason string `json:"finish_reason"`
			}
			Weir json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		s.ids[c.ID] = true
		for _, choice := range c.Choices {
			s.text += choice.Delta.Content
			s.by[c.Model] += choice.Delta.Content
			if choice.FinishReason != "" {
				s.finishes++
			}
		}
		if len(c.Weir) > 0 {
			if err := json.Unmarshal(c.Weir, &s.weir); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// content is the text of a whole answer.
func content(t *testing.T, status int, body []byte) string {
	t.Helper()
	var a struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal(body, &a); err != nil || status != 200 || len(a.Choices) != 1 {
		t.Fatalf("status %d: %s", status, body)
	}
	return a.Choices[0].Message.Content
}

// TestContinue streams answers whose doubt comes after text was shown: the
// cloud's model goes on where the edge's stopped, in one stream and under one
// operation, whose two attempts are in the ledger.
func TestContinue(t *testing.T) {
	s := running(t)
	const class = "batch" // the other tests use the default one
	keyID := strings.Split(s.AppKey, "_")[1]
	tenant := fmt.Sprint(s.object(t, "keys get "+keyID)["tenant_id"])
	s.weir(t, "policies", "put", "--tenant-id", tenant, "--class", class,
		"--spec", `{"name":"go-on","handoff":"continue","window":{"tokens":8,"wait_ms":0}}`)
	ask := func(prompt string) stream {
		status, h, body := post(t, s.EdgeURL, s.AppKey, chatBody("auto", prompt, `,"stream":true,"max_tokens":200`), "X-Weir-Slo", class)
		if status != 200 {
			t.Fatalf("%q: status %d: %s", prompt, status, body)
		}
		return readStream(t, h, body)
	}
	eventually(t, "the policy is in force", time.Minute, func() bool { return ask(sums[0]).policy == "go-on" })
	handed := 0
	for _, prompt := range sums {
		a := ask(prompt)
		if len(a.ids) != 1 || a.finishes != 1 || a.dones != 1 {
			t.Errorf("%q: ids %v, %d finish reasons, %d ends", prompt, a.ids, a.finishes, a.dones)
		}
		if a.weir.HandoffToken > 0 {
			handed++
			s.checkContinued(t, prompt, a)
		}
	}
	if t.Logf("%d of %d answers were handed over", handed, len(sums)); handed == 0 {
		t.Error("no answer was handed over")
	}
}

// checkContinued: what was shown of the edge's answer stands, byte for byte,
// and the rest is what the cloud's model makes of it.
func (s *system) checkContinued(t *testing.T, prompt string, a stream) {
	t.Helper()
	shown := a.by["hub-edge"]
	status, _, body := post(t, s.EdgeURL, s.AppKey, chatBody("hub-edge", prompt, ""))
	if whole := content(t, status, body); shown == "" || !strings.HasPrefix(whole, shown) || a.weir.HandoffToken != len(shown) { // its tokens are bytes
		t.Errorf("%q: shown %q, handed over at token %d, of the edge's answer %q", prompt, shown, a.weir.HandoffToken, whole)
	}
	begun, _ := json.Marshal(shown)
	status, _, body = post(t, s.CloudURL, s.AppKey, fmt.Sprintf(`{"model":"hub-cloud","temperature":0,"max_tokens":100,"continue_final_message":true,"add_generation_prompt":false,`+
		`"messages":[{"role":"user","content":%q},{"role":"assistant","content":%s}]}`, prompt, begun))
	if rest := content(t, status, body); a.text != shown+a.by["hub-cloud"] || a.by["hub-cloud"] != rest || rest == "" {
		t.Errorf("%q: %q after %q, the cloud's model alone goes on %q", prompt, a.text, shown, rest)
	}
	if a.weir.Tier != "cloud" || a.weir.Reason != "low_confidence" || a.weir.Attempts != 2 {
		t.Errorf("%q: %+v", prompt, a.weir)
	}
	rows := map[string]map[string]any{}
	eventually(t, "both attempts are in the ledger", 30*time.Second, func() bool {
		listed, _ := s.object(t, "usage --limit 10 --operation-id "+a.operation)["rows"].([]any)
		for _, r := range listed {
			row := r.(map[string]any)
			rows[fmt.Sprint(row["tier"])] = row
		}
		return len(listed) == 2
	})
	edge, cloud := rows["edge"], rows["cloud"]
	if edge["outcome"] != "escalated" || edge["output_tokens"] != float64(a.weir.EdgeTokens) ||
		cloud["outcome"] != "ok" || cloud["output_tokens"] != float64(a.weir.CloudTokens) {
		t.Errorf("%q: %+v, rows %v", prompt, a.weir, rows)
	}
}
