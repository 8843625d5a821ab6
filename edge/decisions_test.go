package edge_test

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
)

// Decisions are counted on the operations listener, are on disk when the agent
// has stopped, and are explained by the agent that starts after it.
func TestDecisionsOutliveTheAgent(t *testing.T) {
	c := cloudtest.Start(t)
	w := workertest.Start(t)
	cfg := config(t, c, t.TempDir())
	cfg.WorkerURL, cfg.JoinTokenFile = w.URL, tokenFile(t, c)
	a := startAgent(t, cfg)
	a.waitReady(t)
	id := a.chat(t, c.Key.Reveal(), "hi").header.Get("X-Request-Id")
	if m := fetch(t, a.ops+"/metrics", "", 200); !strings.Contains(m, `weir_edge_decisions_total{action="escalate",class="standard",reason="signal_unusable"} 1`) ||
		!strings.Contains(m, "weir_edge_escalated_share 1") {
		t.Errorf("metrics:\n%s", m)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	f, ok, err := journal.Find(filepath.Join(cfg.DataDir, "decisions"), id)
	if r := f.Decision; err != nil || !ok || r.Tier != "cloud" || r.Reason != "signal_unusable" || !r.Judged {
		t.Errorf("%v %v: %+v", ok, err, r)
	}

	again := config(t, c, cfg.DataDir)
	again.WorkerURL = w.URL
	b := startAgent(t, again)
	b.waitReady(t)
	if e := fetch(t, b.url+"/v1/weir/requests/"+id, c.Key.Reveal(), 200); !strings.Contains(e, `"reason":"signal_unusable"`) {
		t.Errorf("explained: %s", e)
	}
}

func fetch(t *testing.T, url, key string, status int) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Errorf("GET %s: %d %v: %s", url, resp.StatusCode, err, raw)
	}
	return string(raw)
}
