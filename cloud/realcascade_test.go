package cloud

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/tenants"
)

// startWorker runs a real worker with a bundled model in its own process.
func startWorker(t *testing.T, lib, model string) (url string) {
	t.Helper()
	addr, out := testproc.FreeAddr(t), &testproc.Log{}
	worker, err := proc.Start(proc.Spec{Name: model, Path: os.Args[0], Output: out,
		Args: []string{"worker", "--model", model, "--role", "mixed", "--listen", addr, "--name", model, "--threads", "1", "--lib", lib, "--max-seqs", "2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		worker.Stop(30 * time.Second)
		if t.Failed() {
			t.Log(out.String())
		}
	})
	tr := &http.Transport{DisableKeepAlives: true}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		resp, err := (&http.Client{Transport: tr}).Get("http://" + addr + "/health")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return "http://" + addr
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("worker of %s is not ready: %v\n%s", model, err, out)
		}
	}
}

// The edge's model as the cloud's small pool, the cloud's as its large one: real
// workers behind a real gateway answer as an edge node with its cloud does.
func TestCascadeOfRealModels(t *testing.T) {
	r := realCascade(t)
	examples, err := models.Calibration()
	if err != nil {
		t.Fatal(err)
	}
	n := 60
	if os.Getenv("WEIR_SOAK") != "" {
		n = 600
	}
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	right, by := 0, map[string]int{}
	for i := range n {
		e := examples[i*len(examples)/n]
		text, w, _ := r.askReal(t, "auto", e.Prompt, i%2 == 1)
		if w.Tier != cascade.TierCloud || w.Confidence == nil || (w.Model == "hub-edge") != (w.Reason == cascade.ReasonConfident) {
			t.Errorf("%q: %+v", e.Prompt, w)
		}
		if want := map[string]int{"hub-edge": 1, "hub-cloud": 2}[w.Model]; w.Attempts != want {
			t.Errorf("%s after %d attempts", w.Model, w.Attempts)
		}
		by[w.Model]++
		if strings.TrimSpace(text) == strings.TrimSpace(e.Answer) {
			right++
		}
	}
	rows := map[string][]string{}
	for _, row := range r.plane.ledger() {
		rows[row.OperationID] = append(rows[row.OperationID], row.Model+" "+string(row.Outcome))
	}
	for op, got := range rows {
		if s := strings.Join(got, ", "); s != "hub-edge ok" && s != "hub-edge escalated, hub-cloud ok" {
			t.Errorf("rows of %s: %s", op, s)
		}
	}
	if len(rows) != n {
		t.Errorf("%d operations in the ledger, want %d", len(rows), n)
	}
	t.Logf("%d prompts: %d right, %v", n, right, by)
	if right < n*88/100 || by["hub-cloud"] < n*12/100 || by["hub-cloud"] > n*50/100 {
		t.Errorf("%d of %d are right, %v", right, n, by)
	}
}

// realCascade runs a gateway over real workers of both bundled models. The model
// "early" judges its answers after a few tokens.
func realCascade(t *testing.T) *cloudRig {
	t.Helper()
	lib := llamatest.Installed(t, "../lib")
	small, large := startWorker(t, lib, "hub-edge"), startWorker(t, lib, "hub-cloud")
	return startCloud(t, http.NotFoundHandler(), func(c *Config) {
		c.Instances = []Instance{{Name: "s", URL: small, Role: "mixed", Model: "hub-edge"}, {Name: "l", URL: large, Role: "mixed", Model: "hub-cloud"}}
		c.Models = map[string]Model{"auto": {Cascade: []Pools{{"hub-edge"}, {"hub-cloud"}}}, "hub-cloud": {Pool: "hub-cloud"},
			"early": {Cascade: []Pools{{"hub-edge"}, {"hub-cloud"}}, Policy: map[string]any{"window": map[string]any{"tokens": earlyTokens, "wait_ms": 0}}}}
		c.FirstByteTimeout, c.StallTimeout, c.AnswerTimeout = time.Minute, time.Minute, time.Minute
	})
}

const earlyTokens = 6

// Streams of real models: one that is kept flows from its window on, one that is
// doubted there is never seen and ends before its answer does.
func TestRealCascadeStreams(t *testing.T) {
	r := realCascade(t)
	examples, err := models.Calibration()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	kept, doubted := 0, 0
	for i := 0; i < 200 && (kept == 0 || doubted == 0); i++ {
		text, w, head := r.askReal(t, "early", examples[i*len(examples)/200].Prompt, true)
		rows := r.plane.ledger()
		small := rows[len(rows)-1]
		switch {
		case w.Model == "hub-edge" && w.Reason == cascade.ReasonConfident && head.Get(contract.HeaderReason) == "": // begun before it was whole
			kept++
		case w.Model == "hub-cloud":
			if small = rows[len(rows)-2]; small.UsageSource != tenants.UsageUpstream { // ended before it could count itself
				doubted++
				if small.Outcome != tenants.OutcomeEscalated || small.OutputTokens == 0 || text == "" {
					t.Errorf("%q, row %+v", text, small)
				}
			}
		}
		if small.Model != "hub-edge" || w.Tier != cascade.TierCloud {
			t.Errorf("%+v, row %+v", w, small)
		}
	}
	if kept == 0 || doubted == 0 {
		t.Errorf("%d streams were kept at their window, %d doubted there", kept, doubted)
	}
}

// askReal asks a model and returns the text, the weir object and the head.
func (r *cloudRig) askReal(t *testing.T, model, prompt string, stream bool) (text string, w contract.Result, head http.Header) {
	t.Helper()
	resp, body := send(t, http.DefaultTransport, "http://"+r.servers.socks.plain.Addr().String()+"/v1/chat/completions", r.key,
		fmt.Sprintf(`{"model":%q,"temperature":0,"stream":%v,"messages":[{"role":"user","content":%q}]}`, model, stream, prompt))
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	pieces := []string{body}
	if stream {
		pieces = nil
		for line := range strings.Lines(body) {
			if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok && data != "[DONE]" {
				pieces = append(pieces, data)
			}
		}
	}
	for _, p := range pieces {
		var a struct {
			Choices []struct {
				Message, Delta struct{ Content string }
			}
			Weir *contract.Result
		}
		if err := json.Unmarshal([]byte(p), &a); err != nil {
			t.Fatalf("%v: %s", err, p)
		}
		for _, c := range a.Choices {
			text += c.Message.Content + c.Delta.Content
		}
		if a.Weir != nil {
			w = *a.Weir
		}
	}
	return text, w, resp.Header
}
