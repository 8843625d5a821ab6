package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/testproc"
)

// running is a worker under test.
type running struct {
	worker.Ready
	url  string
	stop func() error // ends it and waits
}

// start runs a worker in this process until the test ends.
func start(t testing.TB, c worker.Config, load func() (engine.Runner, error)) *running {
	t.Helper()
	return startLogging(t, logger(t), c, load)
}

func startLogging(t testing.TB, log *slog.Logger, c worker.Config, load func() (engine.Runner, error)) *running {
	t.Helper()
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	c.KVExportBytes = 1 << 28
	if c.KVPatience == 0 {
		c.KVPatience = 30 * time.Second
	}
	if c.KVImportBytes == 0 {
		c.KVImportBytes = 1 << 28
	}
	if c.Drain == 0 {
		c.Drain = time.Second
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan worker.Ready, 16), make(chan error, 1)
	go func() {
		done <- worker.Run(ctx, worker.Options{Config: c, Log: log, Load: load, OnReady: func(r worker.Ready) { ready <- r }})
	}()
	r := &running{}
	select {
	case r.Ready = <-ready:
	case err := <-done:
		t.Fatalf("worker did not start: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("worker is not ready after a minute")
	}
	r.url = "http://" + r.Addr.String()
	var ended bool
	var result error
	r.stop = func() error {
		if !ended {
			cancel()
			result, ended = <-done, true
		}
		return result
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("worker ended with %v", err)
		}
	})
	return r
}

func logger(t testing.TB) *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	return slog.New(slog.DiscardHandler)
}

func toy(o runnertest.Options) func() (engine.Runner, error) {
	return func() (engine.Runner, error) { return runnertest.New(o), nil }
}

// certificates makes worker certificates of one throw-away authority.
func certificates(t testing.TB) func(c worker.Config, name string, role pki.Role) worker.Config {
	t.Helper()
	dir := t.TempDir()
	a, err := pki.OpenAuthority(filepath.Join(dir, "secrets"))
	if err != nil {
		t.Fatal(err)
	}
	return func(c worker.Config, name string, role pki.Role) worker.Config {
		out := filepath.Join(dir, name)
		if err := a.IssueTo(out, pki.Spec{Peer: pki.Peer{Role: role, Name: name}, Hosts: pki.LoopbackHosts()}); err != nil {
			t.Fatal(err)
		}
		c.TLSCert, c.TLSKey, c.TLSCA = filepath.Join(out, pki.CertFile), filepath.Join(out, pki.KeyFile), filepath.Join(out, pki.CAFile)
		return c
	}
}

// body is a request or an answer as a JSON object.
type body map[string]any

func (r *running) post(t testing.TB, path string, b body) (int, body) {
	t.Helper()
	raw, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(r.url+path, "application/json", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return decode(t, resp)
}

// ask posts a chat with an operation, as a gateway does.
func (r *running) ask(t testing.TB, operation string, b body) (int, body) {
	t.Helper()
	return r.send(t, "/v1/chat/completions", b, "X-Weir-Operation", operation)
}

// send posts with one more header.
func (r *running) send(t testing.TB, path string, b body, header, value string) (int, body) {
	t.Helper()
	raw, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest("POST", r.url+path, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(header, value)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return decode(t, resp)
}

func decode(t testing.TB, resp *http.Response) (int, body) {
	t.Helper()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out body
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("status %d: %v: %.200s", resp.StatusCode, err, raw)
	}
	return resp.StatusCode, out
}

func (b body) choice() body { return body(b["choices"].([]any)[0].(map[string]any)) }

func (b body) text() string {
	return b.choice()["message"].(map[string]any)["content"].(string)
}

// param is the member that an error names.
func (b body) param() string {
	e, _ := b["error"].(map[string]any)
	s, _ := e["param"].(string)
	return s
}

// metric sums a metric over those of its label values that contain the text.
func (r *running) metric(t testing.TB, name, label string) float64 {
	t.Helper()
	resp, err := http.Get(r.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	f := families[name]
	if f == nil {
		t.Fatalf("no metric %s", name)
	}
	sum := 0.0
	for _, m := range f.GetMetric() {
		if !strings.Contains(m.String(), label) {
			continue
		}
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return sum
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen within a minute", what)
		}
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if code == 0 {
		if err := testproc.Leaks(); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}

var errStep = errors.New("made to fail")
