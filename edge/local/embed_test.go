package local_test

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/edge/foresight"
	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/embedtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
)

func embedding(t *testing.T, o *local.Options, s *embedtest.Server) {
	t.Helper()
	e, err := foresight.NewEmbedder(foresight.EmbedderConfig{URL: s.Endpoint(), Model: "m", Timeout: 2 * time.Second}, prometheus.NewRegistry())
	if err == nil {
		o.Foresight, err = foresight.Open(foresight.Options{Embedder: e, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
}

// Where the model server gives no log-probabilities, similar prompts stand in for
// them once enough is known; a request whose embedding fails is let over. What is
// local-only is never embedded.
func TestSimilarPromptsStandIn(t *testing.T) {
	server := embedtest.Start(t)
	n := startNode(t, func(o *local.Options) { embedding(t, o, server) })
	blind := workertest.Reply{Text: "from the edge", NoProbs: true}
	n.worker.Set(blind)
	for i := range 220 {
		reply := "from the edge"
		if i%2 == 0 {
			reply = "the cloud says something else"
		}
		n.cloud.Answer(cloudtest.Say(reply))
		if a := n.about([]string{"mississippi", "lamp"}[i%2], 0); a.weir.Reason != "signal_unusable" && i < 200 {
			t.Fatalf("%d: %+v", i, a.weir)
		}
	}
	n.cloud.Answer(nil)
	known := n.about("lamp", 1)
	if known.weir.Reason != "confident" || *known.weir.Confidence < .8 {
		t.Errorf("where the tiers agree: %+v", known.weir)
	}
	if e := n.get("/v1/weir/requests/"+known.header.Get("X-Request-Id"), 200); !strings.Contains(e, `"embedding":"ok"`) {
		t.Errorf("explained by %s", e)
	}
	if a := n.about("mississippi", 1); a.weir.Reason != "low_confidence" {
		t.Errorf("where they do not: %+v", a.weir)
	}
	server.Fail(true)
	if a := n.about("lamp", 1); a.weir.Reason != "signal_unusable" {
		t.Errorf("embedder down: %+v", a.weir)
	}
	before, _ := server.Seen()
	n.about("lamp", 1, "X-Weir-Privacy", "local-only")
	if after, _ := server.Seen(); len(after) != len(before) {
		t.Error("a local-only prompt was embedded")
	}
}
