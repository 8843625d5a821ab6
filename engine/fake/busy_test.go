package fake

import (
	"context"
	"encoding/json"
	"net/http"
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
	eventually(t, "two run", func() bool { return e.InFlight() == 2 })
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
