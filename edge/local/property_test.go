package local_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/internal/embedtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/contract"
)

// private marks the prompts that must not leave the node.
const private = ", but tell nobody"

// script is a fault script with the client's wishes.
type script struct {
	worker    workertest.Reply
	cloud     string
	handoff   string
	tokens    int // of the window, -1 for the model's
	continues bool
	foresees  string // a setting that goes by the prompt: "" for none
	about     string // the prompt
	blind     bool   // the embedder is down
	mode      string
	private   bool
	byTenant  bool // private by the tenant's policy, not by the request
	stream    bool
	form      bool // JSON is asked for, which no local answer is
	key       string
}

func drawScript(r *rapid.T, n int) script {
	pick := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(r, name) }
	s := script{
		worker: workertest.Reply{
			Text:    strings.Join(strings.Fields(eight)[:rapid.IntRange(0, 8).Draw(r, "words")], " "),
			Logprob: rapid.SampledFrom([]float64{-.001, -.1, -1}).Draw(r, "logprob"),
			Unsure:  rapid.SampledFrom([]int{0, 0, 1, 3, 5, 7}).Draw(r, "unsure"),
			CutAt:   rapid.SampledFrom([]int{0, 0, 0, 1, 3, 6}).Draw(r, "cut"),
			NoProbs: rapid.IntRange(0, 9).Draw(r, "blind") == 0,
		},
		cloud:   pick("cloud", append(keys(cloudFaults), "fine", "fine", "fine", "fine", "fine")...),
		handoff: pick("handoff", "finish", "continue", "append"),
		tokens:  rapid.SampledFrom([]int{-1, 0, 1, 4, 100}).Draw(r, "window"),
		mode:    pick("mode", "auto", "auto", "auto", "edge-only", "prefer-edge", "prefer-cloud", "cloud-only"),
		private: rapid.IntRange(0, 3).Draw(r, "private") == 0,
		stream:  rapid.IntRange(0, 4).Draw(r, "stream") > 0,
		key:     fmt.Sprint("k", n),
	}
	if rapid.IntRange(0, 3).Draw(r, "thinks") == 0 {
		s.worker.Text = "<think> hm </think> " + s.worker.Text
	}
	s.foresees, s.about = pick("foresees", "", "sticky", "skip_edge", "hedge"), pick("about", "river", "lamp")
	s.blind = rapid.Bool().Draw(r, "embedder down")
	s.continues = rapid.Bool().Draw(r, "continues")
	if s.private {
		s.byTenant, s.about = rapid.Bool().Draw(r, "by tenant"), s.about+private
	}
	if rapid.IntRange(0, 9).Draw(r, "refuses") == 0 {
		s.worker.Status = rapid.SampledFrom([]int{400, 500, 503}).Draw(r, "status")
	}
	s.form = rapid.IntRange(0, 4).Draw(r, "form") == 0
	return s
}

func (s *script) policy() string {
	window := ""
	if s.tokens >= 0 {
		window = fmt.Sprintf(`,"window":{"tokens":%d,"wait_ms":0}`, s.tokens)
	}
	if s.foresees != "" {
		window += fmt.Sprintf(`,%q:true`, s.foresees)
	}
	if s.byTenant {
		window += `,"privacy":"local-only"`
	}
	return fmt.Sprintf(`{"name":"p","handoff":%q%s}`, s.handoff, window)
}

// allowed reports whether text is a beginning of an answer that the two tiers
// may have given together.
func (s *script) allowed(text string, handedOver bool) bool {
	const cloud = "from the cloud"
	if strings.HasPrefix(s.worker.Text, text) || strings.HasPrefix(cloud, text) {
		return true
	}
	for cut := range len(text) {
		rest := text[cut:]
		if s.handoff == "append" {
			rest = strings.TrimPrefix(rest, "\n\n")
		}
		if handedOver && strings.HasPrefix(s.worker.Text, text[:cut]) && strings.HasPrefix(cloud, rest) {
			return true
		}
	}
	return false
}

// tally counts what an edge node begins to ask of its two tiers. What a race has
// called off may reach a server late or never, and is an attempt all the same.
type tally struct {
	local.Cloud
	edge, cloud atomic.Int64
}

func (y *tally) count(o *local.Options) {
	y.Cloud, o.Cloud = o.Cloud, y
	o.Generator = &middle{Generator: o.Generator, after: func() { y.edge.Add(1) }}
}

func (y *tally) Do(ctx context.Context, r uplink.Request) (*uplink.Response, error) {
	y.cloud.Add(1)
	return y.Cloud.Do(ctx, r)
}

// spent is the attempts begun and the rows written until now.
type spent struct{ edge, cloud, rows int }

func (n *node) spent(y *tally) spent {
	return spent{int(y.edge.Load()), int(y.cloud.Load()), len(n.rows.all())}
}

// arrivals counts an operation's requests that have reached the worker and the
// cloud.
func (n *node) arrivals(op string) (worker, cloud int) {
	for _, h := range n.worker.Headers() {
		if h.Get(contract.HeaderOperation) == op {
			worker++
		}
	}
	for _, r := range n.cloud.Seen() {
		if r.Header.Get(contract.HeaderOperation) == op {
			cloud++
		}
	}
	return worker, cloud
}

// The streaming invariant, on the real handler, under any fault script: what
// the client gets only grows and is a beginning of the final answer; there is
// one end; a local-only request never reaches the cloud or the embedder; each local attempt is
// accounted once; a retry under the same Idempotency-Key is never billed again.
func TestStreamingInvariant(t *testing.T) {
	embedder, clock, attempts := embedtest.Start(t), newClock(), &tally{}
	n := startStreaming(t, func(o *local.Options) {
		embedding(t, o, embedder)
		o.Now = clock.now
		attempts.count(o)
	})
	n.setHandoff(`{"name":"p","hedge":true}`, false)
	n.teach(clock, 15*time.Second, 8*time.Second)
	count := 0
	rapid.Check(t, func(r *rapid.T) {
		n.t = t
		count++
		s := drawScript(r, count)
		n.setHandoff(s.policy(), s.continues)
		embedder.Fail(s.blind)
		if s.foresees == "hedge" { // by the clock its deadline is tight
			s.worker.Before = func() { clock.add(15 * time.Second) }
		}
		n.worker.Set(s.worker)
		n.cloud.Answer(cloudFaults[s.cloud])
		eventually(t, "a worker that is ready", n.ready)
		before := n.spent(attempts)
		a := n.ask(&s)
		s.account(r, n, &a, before, n.spent(attempts))
		oneHead(r, &a)
		if a.done != (s.stream && a.status == http.StatusOK && a.errCode == "") || !a.hasWeir {
			r.Fatalf("status %d done %v error %q", a.status, a.done, a.errCode)
		}
		if strings.Contains(n.log.String(), "request panicked") {
			r.Fatal("a request panicked")
		}
		wrong := s.worker.Status == http.StatusBadRequest // by the model server's word the request is at fault
		if !wrong && !s.stream && !s.private && s.mode == "prefer-edge" && s.cloud == "fine" && s.foresees != "hedge" && a.status != http.StatusOK {
			r.Fatalf("the cloud was there: status %d, %s, %+v", a.status, a.errCode, a.weir)
		}
		if !s.allowed(a.text, a.weir.HandoffToken > 0 || a.errCode != "") {
			r.Fatalf("shown %q, %+v", a.text, a.weir)
		}
		if a.status != http.StatusOK || a.errCode != "" {
			return
		}
		if a.text == "" && s.worker.Text != "" {
			r.Fatalf("an empty answer, %+v", a.weir)
		}
		if s.form && a.weir.Tier == cascade.TierEdge && a.weir.Reason != cascade.ReasonValidatorFailed {
			r.Fatalf("a broken form, %+v", a.weir)
		}
		s.retry(r, n, attempts, a)
	})
	seen, _ := embedder.Seen()
	for _, text := range seen {
		if strings.Contains(text, private) {
			t.Fatalf("the embedder was asked of %q", text)
		}
	}
	if len(seen) == 0 {
		t.Fatal("nothing was embedded")
	}
}

// oneHead checks that all events of a stream are of one answer.
func oneHead(r *rapid.T, a *answer) {
	type head struct {
		ID      string
		Created int64
	}
	heads := map[head]bool{}
	for _, e := range a.events {
		var h head
		if err := json.Unmarshal([]byte(e), &h); err != nil {
			r.Fatal(err)
		}
		if h != (head{}) { // an error has none
			heads[h] = true
		}
	}
	if len(heads) > 1 {
		r.Fatalf("events of more than one answer: %v", heads)
	}
}

// account checks that each local attempt has one row, and who was asked.
func (s *script) account(r *rapid.T, n *node, a *answer, before, after spent) {
	edge, cloud := after.edge-before.edge, after.cloud-before.cloud
	if s.private && cloud > 0 {
		r.Fatal("a local-only request was sent to the cloud")
	}
	worker, asked := n.arrivals(a.header.Get(contract.HeaderRequestID))
	most := 1
	if s.cloud == "resets" { // before its first event: asked again, once
		most = 2
	}
	if asked > most {
		r.Fatalf("the cloud was asked %d times", asked)
	}
	ran := edge
	if s.worker.Status == http.StatusBadRequest { // nothing ran
		ran = 0
	}
	if made := after.rows - before.rows; made != ran {
		r.Fatalf("%d rows for %d local attempts", made, ran)
	}
	if worker > edge || worker < edge && s.foresees != "hedge" { // a hedge may call one off before it arrives
		r.Fatalf("the worker saw %d of %d attempts", worker, edge)
	}
}

// retry asks again under the same key.
func (s *script) retry(r *rapid.T, n *node, attempts *tally, first answer) {
	before := n.spent(attempts)
	again := n.ask(s)
	if s.private { // never kept
		return
	}
	if again.text != first.text || again.done != first.done || again.header.Get("X-Request-Id") != first.header.Get("X-Request-Id") {
		r.Fatalf("first %q, again %q (status %d)", first.text, again.text, again.status)
	}
	if after := n.spent(attempts); after != before {
		r.Fatalf("a retry was billed again: %+v, before %+v", after, before)
	}
}

func (n *node) ask(s *script) answer {
	privacy := "any"
	if s.private && !s.byTenant {
		privacy = "local-only"
	}
	headers := []string{"X-Weir-Mode", s.mode, "X-Weir-Privacy", privacy, "Idempotency-Key", s.key, "X-Weir-Session", "s"}
	if s.foresees == "hedge" {
		headers = append(headers, "X-Weir-Deadline-Ms", "20000")
	}
	form := ""
	if s.form {
		form = `,"response_format":{"type":"json_object"}`
	}
	return n.send("/v1/chat/completions", fmt.Sprintf(`{"model":"auto","messages":[{"role":"user","content":"tell me of the %s"}],"stream":%v%s}`, s.about, s.stream, form), headers...)
}

func (n *node) ready() bool {
	_, ok := n.health()
	return ok
}

// TestStreamingInvariantLong is the same for long, for make soak.
func TestStreamingInvariantLong(t *testing.T) {
	if os.Getenv("WEIR_SOAK") == "" {
		t.Skip("WEIR_SOAK is not set")
	}
	for range 20 {
		t.Run("", TestStreamingInvariant)
	}
}
