package local_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/edge/roster"
	"github.com/weirhq/weir/edge/supervise"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/tenants"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

// node is an edge node in the test's process: real uplink, real HTTP, a test
// worker and a test cloud.
type node struct {
	t      testing.TB
	url    string
	server *httptest.Server // at url
	cloud  *cloudtest.Cloud
	worker *workertest.Worker
	link   *uplink.Uplink
	rows   *rows
	log    *safeBuffer
	roster *roster.Roster
	health func() (supervise.Health, bool)
	tel    *telemetry.Telemetry
	onLine func(line string) // told of each line of a stream as it comes
}

// rows is the usage that the API recorded.
type rows struct {
	mu  sync.Mutex
	got []tenants.UsageRecord
}

func (r *rows) Record(u tenants.UsageRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, u)
}

func (r *rows) all() []tenants.UsageRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]tenants.UsageRecord(nil), r.got...)
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// calibration maps the product of probabilities so that the test worker's
// -.001 a token is confident and -1 a token is not.
func calibration() *cascade.Calibration {
	return &cascade.Calibration{Version: 1, Model: "hub-edge", Fingerprint: workertest.Fingerprint, Scored: cascade.ScoredAnswer,
		Bias: .5, Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}, Threshold: .75}
}

func startNode(t testing.TB, change func(*local.Options)) *node {
	t.Helper()
	n := &node{t: t, cloud: cloudtest.Start(t), worker: workertest.Start(t), rows: &rows{}, log: &safeBuffer{}}
	log := slog.New(slog.NewTextHandler(n.log, nil))
	signer := n.cloud.Signer.Public()
	ros, err := roster.Open(t.TempDir()+"/snapshot.json", cloudtest.Tenant, signer.(edPublic), log)
	if err != nil {
		t.Fatal(err)
	}
	n.roster = ros
	n.link, err = uplink.New(uplink.Options{
		BaseURL: n.cloud.URL, TLS: n.cloud.DeviceTLS(t), Log: log, PingHeader: ros.Conditional,
		DialTimeout: 10 * time.Second, KeepAlive: 100 * time.Millisecond, IdleTimeout: 30 * time.Second, HeadStart: 50 * time.Millisecond,
		ProbeEvery: 100 * time.Millisecond, BackoffFirst: 20 * time.Millisecond, BackoffMost: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	sup := supervise.New(supervise.Options{URL: n.worker.URL, Log: log, HTTPClient: &http.Client{Timeout: time.Minute}, PollReady: 20 * time.Millisecond, PollStart: 10 * time.Millisecond})
	n.health = sup.Health
	tel := newTelemetry(t)
	n.tel = tel
	client := &http.Transport{}
	opt := local.Options{
		VoteTime: time.Minute, // on a loaded machine too
		Model:    "hub-edge", CloudModels: []string{"hub-cloud"}, TenantID: cloudtest.Tenant, DeviceID: cloudtest.Device,
		Calibration: calibration(), Policy: cascade.ThresholdPolicy(.75),
		FirstByte: time.Minute, Stall: time.Minute,
		Cloud: n.link, Worker: sup, Roster: ros, Recorder: n.rows, Telemetry: tel, Log: log,
		Generator: &upstream.Worker{HTTP: &http.Client{Transport: client}, URL: n.worker.URL, FirstByte: time.Minute, Stall: time.Minute},
	}
	if change != nil {
		change(&opt)
	}
	srv, err := local.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(srv.Handler())
	n.server, n.url = api, api.URL
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = n.link.Run(ctx) })
	wg.Go(func() { _ = sup.Run(ctx) })
	wg.Go(func() { _ = srv.Forward(ctx) })
	t.Cleanup(func() {
		api.Close()
		cancel()
		wg.Wait()
		client.CloseIdleConnections()
		http.DefaultClient.CloseIdleConnections()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	eventually(t, "link up, worker ready, snapshot there", func() bool {
		_, ready := sup.Health()
		if ros.View() == nil && n.link.Stats().State == uplink.Up {
			_ = ros.Poll(ctx, n.link)
		}
		return ready && n.link.Stats().Via == uplink.ViaQUIC && ros.View() != nil
	})
	return n
}

// middle is a generator in whose way a test stands.
type middle struct {
	local.Generator
	watch func(ctx context.Context, p *upstream.Progress, next upstream.Watch) error // nil passes
	after func()                                                                     // the generation has ended; nil for nothing
}

func (m *middle) Generate(ctx context.Context, a upstream.Ask, next upstream.Watch) (*upstream.Draft, error) {
	watch := next
	if m.watch != nil {
		watch = func(p *upstream.Progress) error { return m.watch(ctx, p, next) }
	}
	d, err := m.Generator.Generate(ctx, a, watch)
	if m.after != nil {
		m.after()
	}
	return d, err
}

func newTelemetry(t testing.TB) *telemetry.Telemetry {
	t.Helper()
	tel, err := telemetry.New(context.Background(), telemetry.Options{Role: "edge", Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tel.Shutdown() })
	return tel
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// poll fetches the snapshot now.
func (n *node) poll() {
	n.t.Helper()
	if err := n.roster.Poll(context.Background(), n.link); err != nil {
		n.t.Fatal(err)
	}
}

// abandon sends a request and leaves as soon as when holds.
func (n *node) abandon(when func() bool) {
	n.t.Helper()
	n.abandonBody("", when)
}

func (n *node) abandonStream(when func() bool) {
	n.t.Helper()
	n.abandonBody(`,"stream":true`, when)
}

func (n *node) abandonBody(extra string, when func() bool) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+"/v1/chat/completions", strings.NewReader(`{"model":"auto",`+hello+extra+`}`))
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+n.cloud.Key.Reveal())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	eventually(n.t, "request under way", when)
	cancel()
	<-ended
}

// get fetches a path with the key and checks the status.
func (n *node) get(path string, status int) string {
	n.t.Helper()
	req, err := http.NewRequest(http.MethodGet, n.url+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.cloud.Key.Reveal())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	if resp.StatusCode != status {
		n.t.Errorf("GET %s: %d %s", path, resp.StatusCode, raw)
	}
	return string(raw)
}

// answer is what a client got.
type answer struct {
	status  int
	header  http.Header
	body    map[string]json.RawMessage
	text    string
	model   string
	weir    contract.Result
	hasWeir bool
	errCode string
	errAt   string // param
	events  []string
	comment bool
	done    bool
}

const hello = `"messages":[{"role":"user","content":"hello"}]`

// send posts a body to path with headers given as name, value pairs.
func (n *node) send(path, body string, headers ...string) answer {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+path, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+n.cloud.Key.Reveal())
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		a.readStream(n.t, resp.Body, n.onLine)
		return a
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	a.take(n.t, raw)
	return a
}

// chat sends a chat request; extra is more members, with a comma in front.
func (n *node) chat(extra string, headers ...string) answer {
	n.t.Helper()
	return n.send("/v1/chat/completions", `{"model":"auto",`+hello+extra+`}`, headers...)
}

func (a *answer) readStream(t testing.TB, r io.Reader, onLine func(string)) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if onLine != nil {
			onLine(line)
		}
		if strings.HasPrefix(line, ":") {
			a.comment = true
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		if a.done {
			t.Error("an event after [DONE]")
		}
		if data == "[DONE]" {
			a.done = true
			continue
		}
		a.events = append(a.events, data)
		if a.hasWeir && a.errCode == "" {
			t.Error("the chunk with the weir object is not the last")
		}
		a.take(t, []byte(data))
	}
}

func (a *answer) take(t testing.TB, raw []byte) {
	var v struct {
		Model   string
		Choices []struct {
			Message struct{ Content string }
			Delta   struct{ Content string }
			Text    string
		}
		Weir  *contract.Result
		Error *struct {
			Message, Type string
			Code, Param   *string
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("not JSON: %v: %.300s", err, raw)
	}
	if json.Unmarshal(raw, &a.body) != nil {
		t.Fatalf("not an object: %.300s", raw)
	}
	if v.Model != "" {
		a.model = v.Model
	}
	for _, c := range v.Choices {
		a.text += c.Message.Content + c.Delta.Content + c.Text
	}
	if v.Weir != nil {
		a.weir, a.hasWeir = *v.Weir, true
	}
	if v.Error != nil {
		if v.Error.Message == "" || v.Error.Type == "" {
			t.Errorf("an error without message or type: %s", raw)
		}
		a.errCode = "none"
		if v.Error.Code != nil {
			a.errCode = *v.Error.Code
		}
		if v.Error.Param != nil {
			a.errAt = *v.Error.Param
		}
	}
}
