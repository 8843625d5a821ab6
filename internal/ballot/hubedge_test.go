package ballot

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/testproc"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testproc.Clean()
	os.Exit(code)
}

// What the bundled edge model says of its own answers is worth nothing, by either
// endpoint: its votes are not usable. docs/cascade.md has the figures.
func TestVotesOfHubEdge(t *testing.T) {
	if os.Getenv("WEIR_SOAK") == "" || os.Getenv("WEIR_LIB") == "" {
		t.Skip("WEIR_SOAK=1 and WEIR_LIB, the folder of llama.cpp's libraries, are not set")
	}
	url := startHubEdge(t)
	all, err := models.Calibration()
	if err != nil {
		t.Fatal(err)
	}
	const samples, prompts = 10, 400
	tables, said := [2]*verifier.Table{verifier.New(samples), verifier.New(samples)}, [2]map[int]int{{}, {}}
	right := 0
	var ways Ways
	for i := range prompts {
		e := all[i*len(all)/prompts]
		body := openai.Body{}
		body.Set("messages", []openai.Message{{Role: "user", Content: e.Prompt}})
		body.Set("model", hubEdge)
		answer := chatText(t, url, body)
		ok := answer == e.Answer
		if ok {
			right++
		}
		for kind, text := range []bool{false, true} {
			c := Case{Model: hubEdge, Text: text, Body: body, Request: &openai.Request{Prompt: "U: " + models.Normalise(e.Prompt) + "\nA: "}, Answer: answer, Samples: samples}
			h := ways.Ask(t.Context(), fmt.Sprint(text), &c, func(ctx context.Context, b openai.Body) ([]byte, error) {
				return post(ctx, url+[]string{"/v1/chat/completions", "/v1/completions"}[kind], b)
			})
			if h.Votes == nil {
				said[kind][-1]++
				continue
			}
			said[kind][h.Votes.Yes]++
			tables[kind].Observe(verifier.StateOf(ok, true), h.Votes.Yes, 1)
		}
	}
	for kind, table := range tables {
		auroc, lower := table.Benefit()
		t.Logf("%s: %d of %d right; AUROC %.3f, at least %.3f: %s; answers by votes %v",
			[]string{"chat", "text"}[kind], right, prompts, auroc, lower, learn.GradeOf(lower), said[kind])
		if learn.GradeOf(lower) == learn.GradeUsable {
			t.Error("the votes are usable: say so in docs/cascade.md")
		}
	}
}

// hubEdge is the bundled model.
const hubEdge = "hub-edge"

func startHubEdge(t *testing.T) (url string) {
	t.Helper()
	bin, err := testproc.Binary()
	if err != nil {
		t.Fatal(err)
	}
	var log testproc.Log
	addr := testproc.FreeAddr(t)
	cmd := exec.CommandContext(t.Context(), bin, "worker", "--model", hubEdge, "--listen", addr)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if resp, err := http.Get("http://" + addr + "/health"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return "http://" + addr
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the worker does not start: %s", log.Tail())
		}
	}
}

func post(ctx context.Context, url string, b openai.Body) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b.JSON()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = openai.ParseError(resp.StatusCode, data)
	}
	return data, err
}

func chatText(t *testing.T, url string, b openai.Body) string {
	t.Helper()
	data, err := post(t.Context(), url+"/v1/chat/completions", b)
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal(data, &a); err != nil || len(a.Choices) == 0 {
		t.Fatalf("%v: %s", err, data)
	}
	return a.Choices[0].Message.Content
}
