package gateway

import (
	"io"
	"net/http"
	"testing"

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
