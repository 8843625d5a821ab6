package worker_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/engine/moe/evaluate"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/experts/rebalance"
	"github.com/weirhq/weir/internal/openai"
)

// TestTopicShiftOverHTTP changes the topic of a worker's requests, as
// evaluate.Live does in the runner's process: imbalance rises, the decision
// comes at most 3 windows later, 3 windows after it the imbalance is below
// max(1.10, 1.03 times the lower bound), no request fails and no answer changes.
func TestTopicShiftOverHTTP(t *testing.T) {
	if os.Getenv("WEIR_SOAK") == "" {
		t.Skip("tens of windows of 2,000 tokens over HTTP: set WEIR_SOAK=1")
	}
	all, err := models.Calibration()
	if err != nil {
		t.Fatal(err)
	}
	const every = 8
	commands := slices.Concat(evaluate.Every(all, every, "T1"), evaluate.Every(all, every, "T2"))
	arithmetic := evaluate.Every(all, every, "T4")
	still := start(t, worker.Config{Role: "mixed"}, hubCloud(t, nil))
	b := moe.DefaultBalance()
	b.Window = 2000
	s := &topicShift{t: t, r: start(t, worker.Config{Role: "mixed"}, hubCloud(t, &b)), want: map[string]string{}}
	for _, e := range slices.Concat(commands, arithmetic) {
		if s.want[e.Prompt], err = answerTo(still, e.Prompt); err != nil {
			t.Fatal(err)
		}
	}

	settled := rebalance.Decision{}
	for n := 1; n <= 12 && (n <= 2 || settled.Reason != rebalance.Balanced); n++ {
		settled = s.window(commands)
	}
	var moved rebalance.Decision
	highest := 0.0
	for n := 1; n <= 3 && moved.Action != rebalance.Move; n++ {
		moved = s.window(arithmetic)
		highest = max(highest, moved.Now)
	}
	if moved.Action != rebalance.Move || highest <= max(settled.Now, 1.10) {
		t.Fatalf("settled at %.3f, %.3f after the change of topic, last decision %+v", settled.Now, highest, moved)
	}
	var last rebalance.Decision
	for range 3 {
		last = s.window(arithmetic)
	}
	limit := max(1.10, 1.03*moved.Bound)
	t.Logf("imbalance %.3f settled, %.3f after the change, %.3f three windows after the move (limit %.3f); %d answers, %d changed, %d failed",
		settled.Now, highest, last.Now, limit, s.answers, s.changed, s.failed)
	if last.Now >= limit {
		t.Errorf("imbalance %.3f three windows after the move, want below %.3f", last.Now, limit)
	}
	if s.answers == 0 || s.changed > 0 || s.failed > 0 {
		t.Errorf("%d answers, %d changed, %d failed", s.answers, s.changed, s.failed)
	}
}

// topicShift asks a worker and compares its answers.
type topicShift struct {
	t    *testing.T
	r    *running
	want map[string]string // by prompt
	at   int               // of the prompts

	mu                       sync.Mutex
	answers, changed, failed int
}

// window asks, four at a time, until the worker has judged one more window.
func (s *topicShift) window(prompts []models.Example) rebalance.Decision {
	s.t.Helper()
	before := view(s.t, s.r).Windows
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		var wg sync.WaitGroup
		for range 4 {
			prompt := prompts[s.at%len(prompts)].Prompt
			s.at++
			wg.Go(func() { s.ask(prompt) })
		}
		wg.Wait()
		if v := view(s.t, s.r); v.Windows > before {
			return v.Decisions[len(v.Decisions)-1]
		}
	}
	s.t.Fatal("no window was judged in two minutes")
	return rebalance.Decision{}
}

func (s *topicShift) ask(prompt string) {
	got, err := answerTo(s.r, prompt)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed++
		s.t.Log(err)
		return
	}
	s.answers++
	if got != s.want[prompt] {
		s.changed++
	}
}

// answerTo is the greedy answer of a worker.
func answerTo(r *running, prompt string) (string, error) {
	raw, err := json.Marshal(body{"model": "hub-cloud", "temperature": 0, "messages": []any{body{"role": "user", "content": prompt}}})
	if err != nil {
		return "", err
	}
	resp, err := http.Post(r.url+"/v1/chat/completions", "application/json", bytes.NewReader(raw))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var a openai.Response
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || resp.StatusCode != http.StatusOK || len(a.Choices) != 1 {
		return "", fmt.Errorf("%q: status %d, %d choices, %v", prompt, resp.StatusCode, len(a.Choices), err)
	}
	return a.Choices[0].Message.Content, nil
}
