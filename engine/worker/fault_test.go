package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/runnertest"
)

// gated is a worker whose steps a test lets through one by one.
type gated struct {
	*running
	runner *runnertest.Runner
	gate   chan struct{}
}

func startGated(t *testing.T, c worker.Config) *gated {
	g := &gated{gate: make(chan struct{})}
	g.running = start(t, c, func() (engine.Runner, error) {
		g.runner = runnertest.New(runnertest.Options{Endless: true, BeforeStep: func([]engine.Span) error { <-g.gate; return nil }})
		return g.runner, nil
	})
	t.Cleanup(func() { close(g.gate) }) // before the worker is stopped
	return g
}

// until lets steps through until ok.
func (g *gated) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	eventually(t, what, func() bool {
		select {
		case g.gate <- struct{}{}:
		default:
		}
		return ok()
	})
}

// TestClientLeaves: a closed connection frees the sequence.
func TestClientLeaves(t *testing.T) {
	r := startGated(t, worker.Config{Role: "mixed"})
	for _, stream := range []bool{true, false} {
		ctx, cancel := context.WithCancel(context.Background())
		raw, _ := json.Marshal(body{"model": "toy", "messages": user("hi"), "stream": stream})
		req, _ := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/chat/completions", bytes.NewReader(raw))
		req.Header.Set("Content-Type", "application/json")
		done := make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		r.until(t, "computing", func() bool { return r.runner.Tokens() > 0 })
		cancel()
		<-done
		r.until(t, "freed", func() bool { return r.runner.Tokens() == 0 })
	}
	r.until(t, "counted", func() bool { return r.metric(t, "vllm:request_success_total", "abort") == 2 })
}

// TestBrokenStep: before the first token a 500, after it an error event without
// [DONE].
func TestBrokenStep(t *testing.T) {
	shown := make(chan struct{})
	step := 0
	r := start(t, worker.Config{Role: "mixed"}, toy(runnertest.Options{Endless: true, BeforeStep: func([]engine.Span) error {
		switch step++; step {
		case 1:
			return errStep
		case 6:
			<-shown
			return errStep
		}
		return nil
	}}))
	b := body{"model": "toy", "messages": user("hi"), "stream": true}
	status, a := r.post(t, "/v1/chat/completions", b)
	if e, _ := a["error"].(map[string]any); status != 500 || e["code"] != "internal_error" || strings.Contains(fmt.Sprint(e), errStep.Error()) {
		t.Errorf("%d, %v", status, a)
	}
	resp := r.open(t, "/v1/chat/completions", b)
	close(shown)
	if resp == nil {
		return
	}
	defer resp.Body.Close()
	_, raw, done := readStream(t, resp.Body)
	if done || len(raw) == 0 || !strings.Contains(raw[len(raw)-1], `"error":{`) {
		t.Errorf("done %v, events %v", done, raw)
	}
}

// told is a stream that was read to its end.
type told struct {
	raw  []string
	done bool
}

// tell asks for a stream of so many tokens, and waits until n requests run.
func (g *gated) tell(t *testing.T, tokens, n int) <-chan told {
	t.Helper()
	out := make(chan told, 1)
	go func() {
		defer close(out)
		_, raw, done := g.streamed(t, "/v1/chat/completions", body{"model": "toy", "messages": user("hi"), "max_tokens": tokens})
		out <- told{raw, done}
	}()
	g.until(t, "it runs", func() bool { return g.metric(t, "vllm:num_requests_running", "") == float64(n) })
	return out
}

// goOn lets steps through until an answer has ended.
func (g *gated) goOn(t *testing.T, answer <-chan told) told {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case g.gate <- struct{}{}:
		case a := <-answer:
			return a
		case <-limit:
			t.Fatal("the answer does not end")
		}
	}
}

// ends waits for a worker that stops, and looks at what it leaves.
func (g *gated) ends(t *testing.T, stopped <-chan error) {
	t.Helper()
	select {
	case err := <-stopped:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the worker does not end")
	}
	if g.runner.Tokens() != 0 {
		t.Errorf("%d tokens left", g.runner.Tokens())
	}
}

// stops tells the worker to end and waits until it takes nothing new.
func (g *gated) stops(t *testing.T) <-chan error {
	t.Helper()
	stopped := make(chan error, 1)
	go func() { stopped <- g.stop() }()
	eventually(t, "new requests are refused", func() bool {
		resp, err := http.Get(g.url + "/v1/models")
		if err != nil {
			return true
		}
		defer resp.Body.Close()
		return resp.StatusCode == 503
	})
	return stopped
}

// TestDrain: a worker that stops refuses new requests and ends those that run.
func TestDrain(t *testing.T) {
	r := startGated(t, worker.Config{Role: "mixed", Drain: time.Minute})
	answers := []<-chan told{r.tell(t, 1000, 1), r.tell(t, 50, 2)}
	stopped := r.stops(t)
	for _, a := range answers {
		if got := r.goOn(t, a); !got.done {
			t.Errorf("answer: %v", got.raw)
		}
	}
	r.ends(t, stopped)
}

// TestDrainCuts: a worker that stops cuts what does not end in time.
func TestDrainCuts(t *testing.T) {
	const patience = 100 * time.Millisecond
	r := startGated(t, worker.Config{Role: "mixed", Drain: patience})
	long := r.tell(t, 100000, 1)
	stopped := r.stops(t)
	time.Sleep(2 * patience) // it is in a step that ends only after the worker's patience has
	if a := r.goOn(t, long); a.done || len(a.raw) == 0 || !strings.Contains(a.raw[len(a.raw)-1], "worker_draining") {
		t.Errorf("long answer: done %v, %v", a.done, a.raw)
	}
	r.ends(t, stopped)
}
