package local_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/internal/openai"
)

// What the edge makes behind the curtain, while the cloud is asked, is its own
// use only: the client is told of the text that it saw.
func TestHandoffCountsWhatWasShown(t *testing.T) {
	ended := make(chan struct{})
	n := startStreaming(t, func(o *local.Options) {
		o.Generator = &middle{Generator: o.Generator, after: func() { close(ended) }}
	})
	n.setHandoff(`{"name":"p","handoff":"continue"}`, true)
	n.worker.Set(workertest.Reply{Text: eight + " w8 w9 w10 w11", Logprob: -.001, Unsure: 5})
	n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-ended:
			cloudtest.Say("from the cloud")(w, r)
		case <-r.Context().Done():
		}
	})
	a := n.chat(`,"stream":true,"stream_options":{"include_usage":true}`)
	shown := len(strings.Fields(strings.TrimSuffix(a.text, "from the cloud")))
	if shown < 5 || shown > 10 || a.weir.HandoffToken != shown || a.weir.EdgeTokens != 13 {
		t.Errorf("%q: %d words of the edge, %+v", a.text, shown, a.weir)
	}
	var usage openai.Usage // the test cloud tells none of its own
	if err := json.Unmarshal(a.body["usage"], &usage); err != nil || usage.CompletionTokens != shown || usage.PromptTokens != 7 {
		t.Errorf("usage %+v, %v", usage, err)
	}
	if rows := n.rows.all(); len(rows) != 1 || rows[0].OutputTokens != 13 {
		t.Errorf("rows %+v", rows)
	}
}
