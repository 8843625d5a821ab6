package fake

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/state"
)

// TestPerSequence: the state tells what a token takes as busy as the engine is,
// and a cost model that predicts it.
func TestPerSequence(t *testing.T) {
	release := make(chan struct{})
	e, s := serve(t, Options{Weir: true, ITL: 5 * time.Millisecond, PerSequence: 3 * time.Millisecond, PerPromptToken: time.Microsecond,
		Hook: func(ctx context.Context, at Stage, _ Call, _ http.ResponseWriter) bool {
			if at == Token {
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			return false
		}})
	done := make(chan struct{})
	for range 2 {
		go func() { post(t, s.URL+"/v1/chat/completions", "{"+question+"}"); done <- struct{}{} }()
	}
	eventually(t, "two run", func() bool { return e.running.Load() == 2 }) // InFlight has those that wait, too
	m := firstState(t, s.URL)
	want := float64(5 + 2*3)
	if m.StepMS != want || m.Cost == nil || m.Cost.Milliseconds(cost.Step{Decodes: 2}) != want || m.Cost.Milliseconds(cost.Step{Prefill: 1000}) != 6 {
		t.Errorf("step %v ms, cost model %+v", m.StepMS, m.Cost)
	}
	close(release)
	<-done
	<-done
}

func firstState(t *testing.T, url string) (m state.Message) {
	t.Helper()
	resp, err := http.Get(url + "/instance/v1/state")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDegrades: an engine can be made slower than its cost model says, and made
// to say that it expects to fail.
func TestDegrades(t *testing.T) {
	_, s := serve(t, Options{Weir: true, ITL: 2 * time.Millisecond, PerSequence: time.Millisecond})
	put := func(path, body string) int {
		req, err := http.NewRequest(http.MethodPut, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, body := range []string{"0", "2000", "fast"} {
		if got := put("/fake/pace", body); got != http.StatusBadRequest {
			t.Errorf("pace %q: %d", body, got)
		}
	}
	if put("/fake/pace", "4") != 200 || put("/fake/failing", "a reason\n") != 200 {
		t.Fatal("not taken")
	}
	if m := firstState(t, s.URL); m.StepMS != 8 || m.ModelMS != 2 || m.Failing != "a reason" || m.Health != "ok" {
		t.Errorf("step %v, modelled %v, failing %q, health %q", m.StepMS, m.ModelMS, m.Failing, m.Health)
	}
	if put("/fake/pace", "1") != 200 || put("/fake/failing", "") != 200 {
		t.Fatal("not taken back")
	}
	if m := firstState(t, s.URL); m.StepMS != 2 || m.Failing != "" {
		t.Errorf("step %v, failing %q", m.StepMS, m.Failing)
	}
}
