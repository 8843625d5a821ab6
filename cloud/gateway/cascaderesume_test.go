package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade/policy"
	cascades "github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/tenants"
)

// TestNobodyTakesTheDraft: the small pool's instance gives away a draft that the
// client has seen the beginning of, and no other is left: the client is told that
// it was cut.
func TestNobodyTakesTheDraft(t *testing.T) {
	r, small, large := cascadeRig(t, nil)
	small.on(func(w http.ResponseWriter, _ *http.Request, _ map[string]any) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 4 {
			_, _ = io.WriteString(w, `data: {"id":"s","created":2,"model":"small","choices":[{"index":0,"delta":{"content":"on "},"logprobs":{"content":[{"token":"on ","logprob":-0.001}]},"finish_reason":null}]}`+"\n\n")
		}
		_, _ = io.WriteString(w, `data: {"id":"s","created":2,"choices":[{"index":0,"delta":{},"finish_reason":"migrated"}],"weir_migrated":{"weir_resume":{"text":"on on on on "}}}`+"\n\n")
		return true
	})
	got := readStreamed(t, r.chat(t, askAuto).body)
	if got.text != "on on on on " || got.done || got.code != "upstream_truncated" {
		t.Errorf("%+v", got)
	}
	if rows := r.newRows(t); len(rows) != 1 || rows[0].Outcome != tenants.OutcomeSuperseded || large.asked() != 0 {
		t.Errorf("rows %+v", rows)
	}
}

// TestStandInGoesOnAsAsked: a draft stands in for a large pool that was to go on
// with its text, and breaks off: the small pool's next instance is asked what the
// first was, for the rest of its tokens.
func TestStandInGoesOnAsAsked(t *testing.T) {
	first, second, large := newInstance(t, "s1", "mixed"), newInstance(t, "s2", "mixed"), newInstance(t, "l", "mixed")
	for _, f := range []*instanceFake{first, second} {
		f.model, f.weights = "small", "fp"
	}
	first.on((&smallScript{words: six, probs: []float64{-.001, -.001, -6}, cut: 5}).serve)
	second.on((&smallScript{words: six[5:], probs: []float64{-.001}}).serve)
	large.on(says(503, `{}`))
	r := newRig(t, func(o *Options) {
		o.Policy, o.MaxAttempts = resuming{"s1"}, 9
		o.Models["auto"] = cascaded(t, policy.Settings{Handoff: cascades.HandoffContinue}, true)
	}, first, second, large)
	got := readStreamed(t, r.chat(t, strings.Replace(askAuto, `"stream":true`, `"stream":true,"max_tokens":100`, 1)).body)
	if got.text != strings.Join(six, "") || !got.done || got.weir.Model != "small" || large.asked() == 0 {
		t.Errorf("%+v", got)
	}
	body, _ := second.last()
	if messages, _ := body["messages"].([]any); len(messages) != 1 || body["continue_final_message"] != nil || body["max_tokens"] != 95.0 || body["weir_resume"] == nil {
		t.Errorf("the next instance was asked %v", body)
	}
}
