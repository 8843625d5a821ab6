package local_test

import (
	"encoding/json"
	"testing"
)

// The explanation comes with the answer where it is asked for, in all its
// forms; scores only for a key with the scope; and never unasked.
func TestExplainInTheAnswer(t *testing.T) {
	n := startStreaming(t, nil)
	explanation := func(a answer) (e struct {
		ID     string
		Judged bool
		Scores *struct {
			Policy     string
			Threshold  float64
			Candidates []struct{ Tier, Blocked string }
			Signals    *struct{ Tokens int }
		}
		Weir *struct{}
	}) {
		t.Helper()
		if a.weir.Explain == nil {
			return e
		}
		raw, err := json.Marshal(a.weir.Explain)
		if err == nil {
			err = json.Unmarshal(raw, &e)
		}
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for _, scope := range []bool{true, false} {
		s := n.cloud.DefaultSnapshot(n.roster.View().Snapshot().Version + 1)
		if !scope {
			s.Keys[0].Scopes = nil
		}
		n.cloud.SetSnapshot(t, s)
		n.poll()
		n.worker.Set(unsure)
		for _, extra := range []string{"", `,"stream":true`} {
			for _, mode := range []string{"auto", "edge-only", "cloud-only"} {
				a := n.chat(extra, "X-Weir-Explain", "1", "X-Weir-Mode", mode)
				e := explanation(a)
				if e.ID != a.header.Get("X-Request-Id") || e.Judged != (mode == "auto") || e.Weir != nil || (e.Scores != nil) != scope {
					t.Errorf("%s%s, scope %v: %+v", mode, extra, scope, e)
				}
				if scope && (len(e.Scores.Candidates) != 2 || (e.Scores.Signals != nil) != (mode != "cloud-only") ||
					mode == "edge-only" && e.Scores.Candidates[1].Blocked != "client_mode") {
					t.Errorf("%s%s: %+v", mode, extra, e.Scores)
				}
			}
			if a := n.chat(extra); a.weir.Explain != nil {
				t.Error("an explanation that nobody asked for")
			}
		}
	}
	if a := n.chat(`,"temperature":0,"weir":{"explain":true}`, "X-Weir-Mode", "cloud-only", "X-Weir-Privacy", "local-only"); a.status != 503 || explanation(a).ID == "" {
		t.Errorf("a refusal: %d %+v", a.status, a.weir)
	}
}
