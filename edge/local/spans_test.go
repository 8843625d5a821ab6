package local_test

import (
	"encoding/json"
	"testing"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
)

// Doubt in reasoning, keys and punctuation does not count, doubt in the answer does.
func TestOnlyTheAnswerIsScored(t *testing.T) {
	n := startNode(t, nil)
	const object, asked = `{"reply": "four" }`, `,"response_format":{"type":"json_object"}`
	for _, tt := range []struct {
		name, extra string
		reply       workertest.Reply
		reason      cascade.Reason
		spans       [3]int // answer, reasoning, structure
	}{
		{"doubtful reasoning", "", workertest.Reply{Text: "<think> is it five? </think> four", Logprob: -.001, Sure: 5}, "confident", [3]int{2, 5, 0}},
		{"doubtful answer", "", workertest.Reply{Text: "<think> it is four </think> four", Logprob: -.001, Unsure: 5}, "low_confidence", [3]int{2, 5, 0}},
		{"no answer", "", workertest.Reply{Text: "<think> is it", Logprob: -.001}, "signal_unusable", [3]int{0, 4, 0}},
		{"doubtful key", asked, workertest.Reply{Text: object, Logprob: -.001, Sure: 1}, "confident", [3]int{2, 0, 2}},
		{"doubtful value", asked, workertest.Reply{Text: object, Logprob: -.001, Unsure: 1}, "low_confidence", [3]int{2, 0, 2}},
		{"the same as text", "", workertest.Reply{Text: object, Logprob: -.001, Sure: 1}, "low_confidence", [3]int{4, 0, 0}},
	} {
		n.worker.Set(tt.reply)
		a := n.chat(tt.extra)
		if a.weir.Reason != tt.reason {
			t.Errorf("%s: %+v", tt.name, a.weir)
		}
		var e struct {
			Scores struct {
				Signals struct {
					Tokens    int
					Think     int `json:"think_tokens"`
					Structure int `json:"structure_tokens"`
				}
			}
		}
		if err := json.Unmarshal([]byte(n.get("/v1/weir/requests/"+a.header.Get("X-Request-Id"), 200)), &e); err != nil {
			t.Fatal(err)
		}
		if g := e.Scores.Signals; [3]int{g.Tokens, g.Think, g.Structure} != tt.spans {
			t.Errorf("%s: explained by %+v, want %v", tt.name, g, tt.spans)
		}
	}
}

// A calibration of plain text leaves answers with reasoning alone.
func TestOldCalibrationsJudgePlainText(t *testing.T) {
	n := startNode(t, func(o *local.Options) { o.Calibration.Scored = "" })
	for text, reason := range map[string]cascade.Reason{"four": "confident", "<think> four? </think> four": "signal_unusable"} {
		n.worker.Set(workertest.Reply{Text: text, Logprob: -.001})
		if a := n.chat(""); a.weir.Reason != reason {
			t.Errorf("%q: %+v", text, a.weir)
		}
	}
}
