package e2e

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/experts/rebalance"
)

// instanceExperts is what "weir experts status --json" tells of an instance.
type instanceExperts struct {
	Instance string
	Role     string
	Problem  string
	Experts  *moe.Status
}

func (s *system) experts(t *testing.T) map[string]instanceExperts {
	t.Helper()
	var page struct{ Data []instanceExperts }
	if err := json.Unmarshal([]byte(s.weir(t, "experts", "status", "--json")), &page); err != nil {
		t.Fatal(err)
	}
	out := map[string]instanceExperts{}
	for _, e := range page.Data {
		out[e.Instance] = e
	}
	return out
}

// TestExperts follows the experts of both cloud workers from the admin REST
// API, and moves those of the decode worker by it.
func TestExperts(t *testing.T) {
	s, err := start(t.TempDir(), "--runner", "moe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	prompts := []string{"what is 347 plus 58", "what is 91 minus 17", "what is 12 times 4"}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 8 {
				if status, _, body := post(t, s.CloudURL, s.AppKey, chatBody("hub-cloud", prompts[i%len(prompts)], "")); status != 200 {
					t.Errorf("answer %d %s", status, body)
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for name, role := range map[string]string{"prefill-1": "prefill", "decode-1": "decode"} {
		e := s.experts(t)[name]
		if e.Experts == nil || e.Role != role || e.Experts.Experts != 16 || e.Experts.Shards[0].Sent == 0 || string(e.Experts.Balance.Phase) != role {
			t.Fatalf("%s: %+v", name, e)
		}
	}
	var moved struct{ Decision rebalance.Decision }
	if err := json.Unmarshal([]byte(s.weir(t, "experts", "rebalance", "decode-1", "--json")), &moved); err != nil {
		t.Fatal(err)
	}
	if moved.Decision.Action != rebalance.Move || moved.Decision.Target >= moved.Decision.Now {
		t.Errorf("decision %+v", moved.Decision)
	}
	eventually(t, "the move is seen", 30*time.Second, func() bool { return s.experts(t)["decode-1"].Experts.Generation > 0 })
	if out := s.weir(t, "experts", "status"); !strings.Contains(out, "decode-1  hub-cloud  decode") || !strings.Contains(out, "imbalance") {
		t.Errorf("status:\n%s", out)
	}
	if status, _, body := post(t, s.CloudURL, s.AppKey, chatBody("hub-cloud", prompts[0], "")); status != 200 || !strings.Contains(string(body), "405") {
		t.Errorf("after the move: %d %s", status, body)
	}
}
