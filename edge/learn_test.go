package edge_test

import (
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/tenants"
)

// metric reads one sample of the operations listener, -1 where there is none.
func (a *agent) metric(t *testing.T, name string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(fetch(t, a.ops+"/metrics", "", 200))
	if m == nil {
		return -1
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A running node labels kept answers in the background, learns from them, counts
// what they cost against the tenant's day, and knows all of it after a restart.
func TestNodeLearnsAndRemembers(t *testing.T) {
	c := cloudtest.Start(t)
	w := workertest.Start(t)
	s := c.DefaultSnapshot(2)
	s.Prices = cloudtest.Prices(1, 1)
	s.Policies = []tenants.Policy{{TenantID: cloudtest.Tenant, Spec: json.RawMessage(`{"shadow":0.5,"budget":{"per_day_nano":1000000,"right_nano":100}}`)}}
	c.SetSnapshot(t, s)
	cfg := config(t, c, t.TempDir())
	cfg.WorkerURL, cfg.JoinTokenFile = w.URL, tokenFile(t, c)
	cfg.ShadowPerHour, cfg.ShadowPerDayUSD = 6000, 1
	cfg.Calibration = filepath.Join(cfg.DataDir, "calibration.json")
	cal := cascade.Calibration{Version: 1, Model: "hub-edge", Fingerprint: workertest.Fingerprint, LabelKind: "truth", Samples: 100, Bias: .5,
		Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}, Threshold: .75}
	raw, err := json.Marshal(cal)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.Calibration, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	a := startAgent(t, cfg)
	a.waitReady(t)
	c.Answer(cloudtest.Say("From the edge!"))
	chosen := 0.0
	for range 60 {
		r := a.chat(t, c.Key.Reveal(), "hi")
		if r.weir.Tier != cascade.TierEdge {
			t.Fatalf("the cloud agrees and yet it answers: %+v", r.weir)
		}
		if half(r.header.Get(contract.HeaderRequestID)) {
			chosen++
		}
	}
	shadowed := `weir_edge_labels_total{source="shadow"}`
	a.await(t, "every chosen answer to be labelled", func() bool { return a.metric(t, shadowed) == chosen })
	labels, policySpent := a.metric(t, shadowed), `weir_edge_policy_spent_nanousd{class="",tenant="`+cloudtest.Tenant+`"}`
	if spent := a.metric(t, policySpent); labels < 10 || labels > 50 || spent != 1000*labels || a.metric(t, "weir_edge_shadow_spent_nanousd") != spent {
		t.Errorf("%v labels for %v nano-dollars", labels, spent)
	}

	c.Answer(cloudtest.Say("no"))
	a.await(t, "the node to doubt what the cloud contradicts", func() bool {
		return a.chat(t, c.Key.Reveal(), "hi").weir.Reason == cascade.ReasonLowConfidence
	})
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	spent := 0.0
	for _, s := range c.Seen() {
		if s.Path == "/v1/chat/completions" {
			spent += 1000
		}
	}
	cfg.JoinTokenFile, cfg.Listen, cfg.OpsListen = "", testproc.FreeAddr(t), testproc.FreeAddr(t)
	b := startAgent(t, cfg)
	b.waitReady(t)
	if n := b.metric(t, `weir_edge_calibration_labels{class="standard"}`); n < labels/2 {
		t.Errorf("%v labels are known after the restart, %v were there before", n, labels)
	}
	if r := b.chat(t, c.Key.Reveal(), "hi"); r.weir.Confidence == nil || *r.weir.Confidence > .999 {
		t.Errorf("after the restart %+v", r.weir)
	}
	if got := b.metric(t, policySpent); got < spent-2000 { // what the stop has cut off was not paid
		t.Errorf("%v nano-dollars are spent after the restart, %v before", got, spent)
	}
}

// half reports whether a share of one half draws an operation: the lower half
// of the numbers that its hash can be.
func half(operation string) bool { return sha256.Sum256([]byte(operation))[0] < 0x80 }

// await polls until ok or a minute has passed.
func (a *agent) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s\n%s", what, strings.Join(grep(fetch(t, a.ops+"/metrics", "", 200), "weir_edge_"), "\n"))
		}
	}
}

func grep(text, word string) (lines []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) && !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
