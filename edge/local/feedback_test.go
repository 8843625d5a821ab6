package local_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/contract"
)

// scored is a cloud that takes scores as it is told to, and answers all else as the
// one behind it.
type scored struct {
	local.Cloud
	mu     sync.Mutex
	says   []int // statuses, one for each try; 0: the link is down; then 200
	bodies []string
}

func (c *scored) Do(ctx context.Context, r uplink.Request) (*uplink.Response, error) {
	if r.Method != http.MethodPut {
		return c.Cloud.Do(ctx, r)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodies = append(c.bodies, r.Path+" "+string(r.Body))
	status := http.StatusOK
	if len(c.says) > 0 {
		status, c.says = c.says[0], c.says[1:]
	}
	if status == 0 {
		return nil, uplink.ErrDown
	}
	return &uplink.Response{Response: &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("{}"))}}, nil
}

func (c *scored) tries() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.bodies...)
}

// put sends a score until it is taken: an answer is remembered a moment after its
// last byte.
func (n *node) put(id, key, body string) (status int) {
	n.t.Helper()
	eventually(n.t, "the request is remembered", func() bool {
		status = n.putOnce(id, key, body)
		return status != http.StatusNotFound
	})
	return status
}

func (n *node) putOnce(id, key, body string) int {
	n.t.Helper()
	req, err := http.NewRequest(http.MethodPut, n.url+"/v1/weir/requests/"+id+"/feedback", strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func startScored(t *testing.T, says ...int) (n *node, log *records, cloud *scored) {
	log, cloud = &records{}, &scored{says: says}
	n = startNode(t, func(o *local.Options) {
		o.Decisions = log
		cloud.Cloud, o.Cloud = o.Cloud, cloud
	})
	return n, log, cloud
}

// A score of the edge's answer is a label here and goes nowhere; one of the cloud's
// goes there too, once, and a newer one as well.
func TestFeedback(t *testing.T) {
	n, log, cloud := startScored(t)
	key := n.cloud.Key.Reveal()
	n.worker.Set(confident)
	kept := n.chat("").header.Get("X-Request-Id")
	private := n.chat("", "X-Weir-Privacy", "local-only").header.Get("X-Request-Id")
	n.worker.Set(unsure)
	asked := n.chat("").header.Get("X-Request-Id")
	for _, tt := range []struct {
		id          string
		score       float64
		tier        string
		edge, cloud bool
	}{{kept, .5, "edge", true, false}, {private, 0, "edge", true, false}, {asked, 1, "cloud", false, true}, {asked, .25, "cloud", false, true}} {
		body, err := json.Marshal(contract.Feedback{Score: tt.score})
		if err != nil {
			t.Fatal(err)
		}
		if status := n.put(tt.id, key, string(body)); status != http.StatusOK {
			t.Fatalf("%s: %d", tt.tier, status)
		}
		r := log.last()
		if r.Kind != journal.KindLabel || r.LabelKind != journal.LabelFeedback || r.Request != tt.id || r.Tier != tt.tier || r.Key != n.cloud.Key.ID || r.Cell != "standard" ||
			(r.Edge != nil) != tt.edge || (r.Cloud != nil) != tt.cloud || tt.edge && *r.Edge != tt.score || tt.cloud && *r.Cloud != tt.score || r.Private != (tt.id == private) {
			t.Errorf("%+v", r)
		}
		if tt.cloud {
			want := "/v1/weir/requests/" + tt.id + "/feedback " + string(body)
			eventually(t, "the score is at the cloud", func() bool { all := cloud.tries(); return len(all) > 0 && all[len(all)-1] == want })
		}
	}
	if all := strings.Join(cloud.tries(), " "); strings.Contains(all, kept) || strings.Contains(all, private) {
		t.Errorf("the cloud was told of answers that are not its own: %s", all)
	}
}

func TestFeedbackRefusals(t *testing.T) {
	n, log, _ := startScored(t)
	key := n.cloud.Key.Reveal()
	n.worker.Set(confident)
	id := n.chat("").header.Get("X-Request-Id")
	n.put(id, key, `{"score":1}`)
	before := len(log.got)
	old, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	copy(old[:6], []byte{1, 0x90, 0, 0, 0, 0})
	failed := n.send("/v1/chat/completions", `{"model":"auto",`+hello+`}`, "X-Weir-Mode", "cloud-only", "X-Weir-Privacy", "local-only").header.Get("X-Request-Id")
	n.cloud.Answer(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, cloudBegins)
	})
	broken := n.send("/v1/chat/completions", `{"model":"hub-cloud","stream":true,`+hello+`}`).header.Get("X-Request-Id")
	stopped := contract.NewID() // of a request that only the log remembers
	log.Log(journal.Record{Kind: journal.KindDecision, Request: stopped, Key: n.cloud.Key.ID, Tier: "cloud", Outcome: "client_cancelled"})
	before++
	for name, tt := range map[string]struct {
		id, key, body string
		want          int
	}{
		"a foreign key":  {id, "wk_abcd_" + strings.Repeat("x", 43), `{"score":1}`, 401},
		"out of range":   {id, key, `{"score":1.5}`, 400},
		"a word":         {id, key, `{"score":"good"}`, 400},
		"another member": {id, key, `{"score":1,"text":"x"}`, 400},
		"too long":       {id, key, `{"score":1}` + strings.Repeat(" ", 5000), 413},
		"unknown":        {contract.NewID(), key, `{"score":1}`, 404},
		"no id":          {"x", key, `{"score":1}`, 404},
		"long ago":       {old.String(), key, `{"score":1}`, 410},
		"without answer": {failed, key, `{"score":1}`, 409},
		"broken off":     {broken, key, `{"score":1}`, 409},
		"stopped":        {stopped, key, `{"score":0}`, 409},
	} {
		status := 0
		eventually(t, name, func() bool {
			status = n.putOnce(tt.id, tt.key, tt.body)
			return status != http.StatusNotFound || tt.want == http.StatusNotFound
		})
		if status != tt.want {
			t.Errorf("%s: %d, want %d", name, status, tt.want)
		}
	}
	if len(log.got) != before+2 || log.last().Kind != journal.KindDecision { // of the requests that failed
		t.Errorf("%+v", log.got[before:])
	}
}

// What the cloud does not take at once is sent again; what it refuses is not.
func TestFeedbackIsSentAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		says  []int
		tries int
	}{"unknown yet": {[]int{404}, 2}, "away": {[]int{503}, 2}, "offline": {[]int{0}, 2}, "refused": {[]int{400}, 1}, "too late": {[]int{410}, 1}} {
		n, _, cloud := startScored(t, tt.says...)
		n.worker.Set(unsure)
		n.put(n.chat("").header.Get("X-Request-Id"), n.cloud.Key.Reveal(), `{"score":1}`)
		outcome := `weir_edge_feedback_total{outcome="forwarded"} 1`
		if tt.tries == 1 {
			outcome = `weir_edge_feedback_total{outcome="refused"} 1`
		}
		eventually(t, name, func() bool {
			w := httptest.NewRecorder()
			n.tel.MetricsHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			return strings.Contains(w.Body.String(), outcome)
		})
		if got := cloud.tries(); len(got) != tt.tries {
			t.Errorf("%s: %v", name, got)
		}
	}
}
