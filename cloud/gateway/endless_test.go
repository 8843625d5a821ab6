package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/tenants"
)

// endlessly streams tokens until the gateway goes, whatever was asked for.
func (f *instanceFake) endlessly(w http.ResponseWriter, r *http.Request, _ map[string]any) bool {
	w.Header().Set("Content-Type", "text/event-stream")
	for r.Context().Err() == nil {
		fmt.Fprintf(w, "data: {\"id\":\"c\",\"model\":%q,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"on \"},\"logprobs\":{\"content\":[{\"token\":\"on \",\"logprob\":-0.001}]},\"finish_reason\":null}]}\n\n", f.model)
		_ = http.NewResponseController(w).Flush()
	}
	f.cancelled.Add(1)
	return true
}

// TestEndlessAnswer: an engine that does not end at max_tokens is left soon after,
// and the client is told and charged no more than that.
func TestEndlessAnswer(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	d.on(d.endlessly)
	r := newRig(t, nil, d)
	for n, body := range map[int]string{20: `"max_tokens":20`, 3 * 20: `"max_tokens":20,"n":3`} {
		got := r.chat(t, strings.Replace(ask1s, `"stream":true`, `"stream":true,`+body, 1))
		ev, rows := events(got.body), r.newRows(t)
		last := ev[len(ev)-1]
		if errorOf(t, last)["code"] != "upstream_truncated" || weirOf(t, last)["cloud_tokens"] != float64(n+spare) || strings.Contains(got.body, "[DONE]") {
			t.Errorf("%s: the stream of %d events ends with %s", body, len(ev), last)
		}
		if len(rows) != 1 || rows[0].Outcome != tenants.OutcomeUpstreamTruncated || rows[0].OutputTokens != int64(n+spare) {
			t.Errorf("%s: ledger %+v", body, rows)
		}
	}
	await(t, "the instance saw the ends", func() bool { return d.cancelled.Load() == 2 })
}

// TestAnswerPastTheNewerName: an engine that does not read max_completion_tokens ends
// when it is done, and nothing is wrong with it.
func TestAnswerPastTheNewerName(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	words := slices.Repeat([]string{"on "}, 20+2*spare)
	d.on((&smallScript{words: words, probs: []float64{-.001}}).serve)
	r := newRig(t, nil, d)
	got := r.chat(t, strings.Replace(ask1s, `"stream":true`, `"stream":true,"max_completion_tokens":20`, 1))
	if !strings.HasSuffix(got.body, "[DONE]\n\n") || text(t, got.body) != strings.Join(words, "") {
		t.Errorf("%s", got.body)
	}
	if s := r.opts.Pool.Status(); s[0].Failures != 0 {
		t.Errorf("the instance's failures: %+v", s)
	}
}

// TestEndlessDraft: of a cascade's small pool nobody has seen anything then: the
// large one answers.
func TestEndlessDraft(t *testing.T) {
	r, small, _ := cascadeRig(t, nil)
	small.on(small.endlessly)
	got := r.chat(t, `{"model":"auto","stream":true,"max_tokens":20,"messages":[{"role":"user","content":"hi"}]}`)
	if w := weirAt(t, lastEvent(got)); w.Model != "big" || w.Reason != cascade.ReasonEdgeUnavailable || !strings.HasSuffix(got.body, "[DONE]\n\n") {
		t.Errorf("%+v: %s", w, got.body)
	}
	if rows := r.newRows(t); len(rows) != 2 || rows[0].Outcome != tenants.OutcomeUpstreamError || rows[1].Outcome != tenants.OutcomeOK {
		t.Errorf("ledger %+v", rows)
	}
}
