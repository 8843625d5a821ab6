package edge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/edge"
	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/tenants/spool"
)

// TestMain lets this binary stand for the weir binary that an agent starts its
// worker from.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		env := cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
		os.Exit(cli.Main(context.Background(), env, []cli.Command{worker.Command()}, os.Args[1:]))
	}
	testproc.VerifyMain(m)
}

// agent is a running edge node.
type agent struct {
	url, ops string
	log      *testproc.Log
	stop     func() error
}

func config(t *testing.T, c *cloudtest.Cloud, dir string) edge.Config {
	t.Helper()
	cfg := edge.Config{
		Listen: testproc.FreeAddr(t), OpsListen: testproc.FreeAddr(t), DataDir: dir, CloudURL: c.URL, UDP: "auto",
		Model: "hub-edge", CloudModels: []string{"hub-cloud"}, WorkerListen: testproc.FreeAddr(t), Threshold: -1,
		MaxInflight: 64, MaxLocal: 16, FirstByte: time.Minute, Stall: time.Minute, Heartbeat: time.Second,
		SnapshotPoll: 50 * time.Millisecond, UDPProbe: 100 * time.Millisecond, Drain: 30 * time.Second, LogLevel: "info",
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func tokenFile(t *testing.T, c *cloudtest.Cloud) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(c.MintToken(t).Reveal()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func startAgent(t *testing.T, cfg edge.Config) *agent {
	t.Helper()
	a := &agent{url: "http://" + cfg.Listen, ops: "http://" + cfg.OpsListen, log: &testproc.Log{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- edge.Run(ctx, cfg, edge.Options{Log: slog.New(slog.NewTextHandler(a.log, nil))}) }()
	a.stop = sync.OnceValue(func() error {
		cancel()
		defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			return errors.New("the agent does not stop")
		}
	})
	t.Cleanup(func() {
		if err := a.stop(); err != nil {
			t.Errorf("agent: %v\n%s", err, a.log)
		}
	})
	return a
}

func (a *agent) waitReady(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	var last string
	for time.Now().Before(deadline) {
		resp, err := http.Get(a.ops + "/readyz")
		if err == nil {
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if last = string(body); strings.Contains(last, `"status": "ok"`) {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not ready: %s\n%s", last, a.log)
}

type reply struct {
	status int
	text   string
	weir   contract.Result
	header http.Header
}

func (a *agent) chat(t *testing.T, key, prompt string, headers ...string) reply {
	t.Helper()
	body := fmt.Sprintf(`{"model":"auto","temperature":0,"messages":[{"role":"user","content":%q}]}`, prompt)
	req, err := http.NewRequest(http.MethodPost, a.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v struct {
		Choices []struct{ Message struct{ Content string } }
		Weir    contract.Result
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	r := reply{status: resp.StatusCode, weir: v.Weir, header: resp.Header}
	if len(v.Choices) > 0 {
		r.text = v.Choices[0].Message.Content
	}
	return r
}

// The agent joins, serves, reports usage, and starts again with the same
// identity, also while the cloud is away.
func TestAgentJoinsAndComesBack(t *testing.T) {
	c := cloudtest.Start(t)
	w := workertest.Start(t)
	cfg := config(t, c, t.TempDir())
	cfg.WorkerURL, cfg.JoinTokenFile = w.URL, tokenFile(t, c)
	a := startAgent(t, cfg)
	a.waitReady(t)
	if r := a.chat(t, c.Key.Reveal(), "hi"); r.status != 200 || r.text != "from the cloud" || r.weir.Reason != "signal_unusable" {
		t.Errorf("the test worker has no calibration: %+v", r)
	}
	if r := a.chat(t, c.Key.Reveal(), "hi", "X-Weir-Mode", "edge-only"); r.text != "from the edge" {
		t.Errorf("edge-only: %+v", r)
	}
	if r := a.chat(t, "wk_abcd_"+strings.Repeat("x", 43), "hi"); r.status != 401 {
		t.Errorf("a foreign key got %d", r.status)
	}
	if r := a.chat(t, "", "hi"); r.status != 401 {
		t.Errorf("no key got %d", r.status)
	}
	a.await(t, "both usage rows are reported", func() bool {
		return strings.Contains(fetch(t, a.ops+"/readyz", "", 200), `"sent": 2,`)
	})
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if rows := c.Usage(); len(rows) != 2 {
		t.Errorf("the cloud has %d usage rows", len(rows))
	}

	c.Stop()
	again := config(t, c, cfg.DataDir)
	again.WorkerURL, again.CloudURL, again.JoinTokenFile = w.URL, "", ""
	b := startAgent(t, again)
	waitServing(t, b)
	r := b.chat(t, c.Key.Reveal(), "hi")
	if r.status != 200 || r.text != "from the edge" || r.weir.Reason != "offline" {
		t.Errorf("started without the cloud: %+v", r)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	rows, err := spool.Open(spool.Options{Dir: filepath.Join(cfg.DataDir, "usage")})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if n := rows.Stats().Pending; n != 1 {
		t.Errorf("%d usage rows wait for the next start: want 1", n)
	}
	if strings.Contains(a.log.String()+b.log.String(), c.Key.Secret.Reveal()) {
		t.Error("a key is in the log")
	}
}

// waitServing waits until the worker is ready and the link is known to be down.
func waitServing(t *testing.T, a *agent) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !strings.Contains(a.log.String(), "uplink is down") || !strings.Contains(a.log.String(), "worker is ready") {
		if time.Now().After(deadline) {
			t.Fatalf("not serving:\n%s", a.log)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestAgentRefusesAUsedToken(t *testing.T) {
	c := cloudtest.Start(t)
	cfg := config(t, c, t.TempDir())
	cfg.WorkerURL, cfg.JoinTokenFile = "http://127.0.0.1:9", tokenFile(t, c)
	first := startAgent(t, cfg)
	deadline := time.Now().Add(time.Minute)
	for !strings.Contains(first.log.String(), "joined") {
		if time.Now().After(deadline) {
			t.Fatal(first.log)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	cfg.DataDir = t.TempDir()
	err := edge.Run(context.Background(), cfg, edge.Options{Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "refused the join token") {
		t.Errorf("error %v", err)
	}
}

func TestAgentSaysWhatIsWrong(t *testing.T) {
	c := cloudtest.Start(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(*edge.Config)
		want   string
	}{
		{"port taken", func(c *edge.Config) { c.Listen = taken.Addr().String() }, "address already in use"},
		{"ops port taken", func(c *edge.Config) { c.OpsListen = taken.Addr().String() }, "address already in use"},
		{"not joined", func(c *edge.Config) {}, "has not joined"},
		{"no token file", func(c *edge.Config) { c.JoinTokenFile = "/nonexistent/t" }, "join_token_file"},
		{"bad token", func(c *edge.Config) { c.JoinToken = "wj1.x" }, "join token looks like"},
		{"data dir is a file", func(c *edge.Config) { c.DataDir = file }, "data_dir"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(t, c, t.TempDir())
			tt.change(&cfg)
			err := edge.Run(context.Background(), cfg, edge.Options{Log: slog.New(slog.DiscardHandler)})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// The real worker with the bundled model, started and restarted by the agent.
func TestAgentRunsTheBundledModel(t *testing.T) {
	lib := llamatest.Installed(t, "../lib")
	c := cloudtest.Start(t)
	cfg := config(t, c, t.TempDir())
	cfg.Lib, cfg.WorkerThreads, cfg.JoinTokenFile = lib, 1, tokenFile(t, c)
	a := startAgent(t, cfg)
	a.waitReady(t)
	r := a.chat(t, c.Key.Reveal(), "turn on the kitchen light")
	if r.status != 200 || r.weir.Tier != "edge" || r.weir.Reason != "confident" || r.weir.Confidence == nil || *r.weir.Confidence < .9 {
		t.Errorf("%+v", r)
	}
	if r := a.chat(t, c.Key.Reveal(), "sort these numbers: 9 2 7 4 1 8"); r.weir.Tier != "cloud" || r.weir.Reason != "low_confidence" {
		t.Errorf("a hard question: %+v", r)
	}
}
