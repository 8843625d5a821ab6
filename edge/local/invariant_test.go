package local_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/internal/openai"
)

// faults of the local worker and of the cloud, by name.
var localFaults = map[string]workertest.Reply{
	"sure":     confident,
	"unsure":   unsure,
	"blind":    {Text: "x", NoProbs: true},
	"empty":    {Text: "", Logprob: -.01},
	"dies":     {Status: 500},
	"busy":     {Status: 503, Code: "busy"},
	"too long": {Status: 400, Code: openai.CodeContextLength},
	"cut":      {Text: "a b c d", Logprob: -1, CutAt: 2},
}

var cloudFaults = map[string]http.HandlerFunc{
	"fine":  nil,
	"500":   func(w http.ResponseWriter, _ *http.Request) { openai.Internal(nil).Write(w, nil) },
	"429":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) },
	"empty": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/event-stream") },
	"cut": func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, cloudBegins)
	},
	"busy": func(w http.ResponseWriter, _ *http.Request) {
		openai.Unavailable("overloaded", time.Second, "too much to do").Write(w, nil)
	},
	"refuses": func(w http.ResponseWriter, _ *http.Request) {
		openai.BadRequest("messages", openai.CodeContextLength, "too long").Write(w, nil)
	},
	"resets": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	"page": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html>It works!</html>")
	},
	"malformed": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, cloudBegins+"data: {\"choices\":[}\n\n") },
	"truncated": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, cloudBegins+`data: {"id":"c","choi`) },
	"error event": func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, cloudBegins+`data: {"error":{"message":"x","type":"server_error","code":"upstream_truncated"}}`+"\n\n")
	},
	"long line": func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, cloudBegins+"data: {\"id\":\""+strings.Repeat("x", 5<<20)+"\"}\n\n")
	},
}

// cloudBegins is the first event of a cloud's stream.
const cloudBegins = `data: {"id":"c","created":1,"model":"hub-cloud","choices":[{"index":0,"delta":{"content":"from "}}]}` + "\n\n"

// keys are in order, so that a script that was drawn can be drawn again.
func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// No fault script, mode or spelling of the label lets a local-only request out
// of the node, and every request ends exactly once with a reason.
func TestLocalOnlyNeverReachesTheCloud(t *testing.T) {
	n := startNode(t, nil)
	rapid.Check(t, func(r *rapid.T) {
		n.worker.Set(localFaults[rapid.SampledFrom(keys(localFaults)).Draw(r, "worker")])
		n.cloud.Answer(cloudFaults[rapid.SampledFrom(keys(cloudFaults)).Draw(r, "cloud")])
		mode := rapid.SampledFrom([]string{"", "auto", "edge-only", "cloud-only", "prefer-edge", "prefer-cloud"}).Draw(r, "mode")
		model := rapid.SampledFrom([]string{"auto", "hub-edge", "hub-cloud"}).Draw(r, "model")
		stream := rapid.Bool().Draw(r, "stream")
		header, object := "local-only", ""
		switch rapid.IntRange(0, 2).Draw(r, "where") {
		case 1:
			header, object = "any", `,"weir":{"privacy":"local-only"}`
		case 2:
			object = `,"weir":{"privacy":"any"}`
		}
		before := len(n.cloud.Seen())
		a := n.send("/v1/chat/completions", fmt.Sprintf(`{"model":%q,%s,"stream":%v%s}`, model, hello, stream, object),
			"X-Weir-Mode", mode, "X-Weir-Privacy", header)
		if len(n.cloud.Seen()) != before {
			r.Fatal("a local-only request reached the cloud")
		}
		if a.weir.Tier == "cloud" || (a.status == 200 && a.errCode == "" && a.weir.Reason != "local_only") {
			r.Fatalf("status %d weir %+v", a.status, a.weir)
		}
		if a.status != 200 && a.status != 400 && a.weir.Reason != "local_only_unavailable" && a.weir.Reason != "edge_overloaded" {
			r.Fatalf("status %d reason %q", a.status, a.weir.Reason)
		}
	})
}

func TestDeadlineEndsEveryWait(t *testing.T) {
	n := startNode(t, nil)
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	hang := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-never:
		case <-r.Context().Done():
		}
	}
	n.cloud.Answer(hang)
	n.worker.Set(unsure)
	for _, stream := range []string{"", `,"stream":true`} { // the cloud hangs: the local answer stands
		if a := n.chat(stream, "X-Weir-Deadline-Ms", "5000"); a.status != 200 || a.weir.Tier != "edge" || a.weir.Reason != "deadline" {
			t.Errorf("cloud hangs: %d %+v", a.status, a.weir)
		}
	}
	if a := n.chat("", "X-Weir-Deadline-Ms", "300", "X-Weir-Mode", "cloud-only"); a.status != 504 || a.errCode != "deadline_exceeded" || a.weir.Reason != "deadline" {
		t.Errorf("cloud-only: %d %s %+v", a.status, a.errCode, a.weir)
	}
	n.worker.Set(workertest.Reply{Text: "x", Gate: never})
	if a := n.chat("", "X-Weir-Deadline-Ms", "300"); a.status != 504 || a.weir.Reason != "deadline" {
		t.Errorf("the worker hangs: %d %+v", a.status, a.weir)
	}
	n.worker.Set(unsure)
	n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) { // hangs after a byte was shown
		fmt.Fprint(w, `data: {"id":"c","model":"hub-cloud","choices":[{"index":0,"delta":{"content":"from"}}]}`+"\n\n")
		_ = http.NewResponseController(w).Flush()
		hang(w, r)
	})
	if a := n.chat(`,"stream":true`, "X-Weir-Deadline-Ms", "5000"); a.text != "from" || a.done || a.errCode != "deadline_exceeded" {
		t.Errorf("mid-stream: text %q done %v error %q", a.text, a.done, a.errCode)
	}
}

// A cost cap below what the cloud may cost keeps the answer at the edge.
func TestCostCap(t *testing.T) {
	n := startNode(t, nil)
	s := n.cloud.DefaultSnapshot(2)
	s.Prices = cloudtest.Prices(1_000_000, 2_000_000)
	n.cloud.SetSnapshot(t, s)
	n.poll()
	n.worker.Set(unsure)
	if a := n.chat(`,"max_tokens":1000`, "X-Weir-Max-Cost-Usd", "0.0001"); a.weir.Tier != "edge" || a.weir.Reason != "cost_cap" {
		t.Errorf("%+v", a.weir)
	}
	if a := n.chat(`,"max_tokens":1000`, "X-Weir-Max-Cost-Usd", "0"); a.weir.Tier != "edge" || a.weir.Reason != "cost_cap" {
		t.Errorf("nothing may be spent: %+v", a.weir)
	}
	if a := n.chat(`,"max_tokens":1000`, "X-Weir-Max-Cost-Usd", "1"); a.weir.Tier != "cloud" {
		t.Errorf("%+v", a.weir)
	}
	if a := n.chat("", "X-Weir-Max-Cost-Usd", "0.0001", "X-Weir-Mode", "cloud-only"); a.status != 400 || a.errAt != "X-Weir-Max-Cost-Usd" {
		t.Errorf("cloud-only: %d %s", a.status, a.errAt)
	}
}

// A client that leaves frees the worker: its request ends.
func TestClientLeaves(t *testing.T) {
	n := startNode(t, nil)
	gate := make(chan struct{})
	n.worker.Set(workertest.Reply{Text: "x", Gate: gate})
	n.abandon(func() bool { return len(n.worker.Seen()) == 1 })
	eventually(t, "row of the cancelled attempt", func() bool {
		rows := n.rows.all()
		return len(rows) == 1 && rows[0].Outcome == "client_cancelled"
	})
	close(gate)
	left := make(chan struct{})
	n.worker.Set(unsure)
	n.cloud.Answer(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(left)
	})
	n.abandon(func() bool { return len(n.cloud.Seen()) == 1 })
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Error("the cloud's request goes on without a client")
	}
	eventually(t, "second row", func() bool { return len(n.rows.all()) == 2 })
}
