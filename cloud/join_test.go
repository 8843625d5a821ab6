package cloud

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/control"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/gguf/random"
	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/internal/testproc"
)

// fleet is gateways of one cloud and workers that join it, each worker a process
// of its own with a small random model.
type fleet struct {
	dir      string
	model    string
	gateways []Config
	tr       *http.Transport
	key      string
	token    string // worker token's file
}

// newFleet starts n gateways without any instance.
func newFleet(t *testing.T, databaseURL string, n int) *fleet {
	t.Helper()
	f := &fleet{dir: t.TempDir(), tr: &http.Transport{}}
	t.Cleanup(f.tr.CloseIdleConnections)
	f.model = filepath.Join(f.dir, "model.gguf")
	if _, err := random.WriteFile(f.model, random.Options{Arch: "qwen3moe", Params: 1_000_000, Context: 512, Type: gguf.Q8_0, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		conf := testConfig("")
		conf.Name, conf.Listen, conf.TLSListen, conf.OpsListen = fmt.Sprintf("g%d", i), testproc.FreeAddr(t), testproc.FreeAddr(t), testproc.FreeAddr(t)
		conf.Instances, conf.Pools = nil, []string{"tiny"}
		conf.FirstByteTimeout, conf.ProbeInterval, conf.LogLevel = time.Minute, 200*time.Millisecond, "error"
		conf.SecretsDir, conf.DataDir = filepath.Join(f.dir, "secrets"), t.TempDir()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- Run(ctx, conf, databaseURL, io.Discard) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("%s: %v", conf.Name, err)
			}
		})
		f.gateways = append(f.gateways, conf)
	}
	await(t, "an admin token", func() bool {
		_, err := os.Stat(filepath.Join(f.dir, "secrets", control.AdminTokenFile))
		return err == nil
	})
	return f
}

func (f *fleet) admin(t *testing.T, method, path string, in, out any) error {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(f.dir, "secrets", control.AdminTokenFile))
	if err != nil {
		t.Fatal(err)
	}
	return client.Admin{URL: "http://" + f.gateways[0].Listen, Token: strings.TrimSpace(string(token)), HTTP: &http.Client{Transport: f.tr}}.
		Call(t.Context(), method, path, in, out)
}

// mint makes a tenant's key and a worker token for the given number of workers.
func (f *fleet) mint(t *testing.T, workers int) {
	t.Helper()
	var tenant, made struct{ ID, Key, Token string }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the admin API", func() bool { return f.admin(t, http.MethodGet, "tenants", nil, nil) == nil })
	must(f.admin(t, http.MethodPost, "tenants", map[string]string{"name": "acme"}, &tenant))
	must(f.admin(t, http.MethodPost, "keys", map[string]string{"tenant_id": tenant.ID}, &made))
	f.key = made.Key
	must(f.admin(t, http.MethodPost, "worker-tokens", map[string]int{"uses": workers}, &made))
	f.token = filepath.Join(f.dir, "worker-token")
	must(os.WriteFile(f.token, []byte(made.Token+"\n"), 0o600))
}

// joinee is a worker's process with what it says.
type joinee struct {
	*proc.Child
	out *testproc.Log
}

// worker starts one that listens on every address, and so behind mutual TLS.
func (f *fleet) worker(t *testing.T, name string, more ...string) joinee {
	t.Helper()
	out := &testproc.Log{}
	var clouds []string
	for _, g := range f.gateways {
		clouds = append(clouds, "https://"+g.TLSListen)
	}
	w, err := proc.Start(proc.Spec{Name: name, Path: os.Args[0], Output: out, Args: append([]string{"worker", "--name", name, "--model", f.model,
		"--runner", "moe", "--served-model-name", "tiny", "--threads", "1", "--max-seqs", "2", "--listen", "0.0.0.0:0", "--advertise-host", "127.0.0.1",
		"--join", strings.Join(clouds, ","), "--join-token-file", f.token, "--data-dir", filepath.Join(f.dir, name), "--drain", "10s"}, more...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Stop(30 * time.Second)
		if t.Failed() {
			t.Logf("%s: %s", name, out.Tail())
		}
	})
	return joinee{w, out}
}

// status is an instance as a gateway knows it.
func (f *fleet) status(t *testing.T, gateway int, name string) (s pool.Status, known bool) {
	t.Helper()
	g := *f
	g.gateways = f.gateways[gateway:]
	var list struct{ Data []pool.Status }
	if err := g.admin(t, http.MethodGet, "pools", nil, &list); err != nil {
		return s, false
	}
	for _, s := range list.Data {
		if s.Name == name && !s.Leaving {
			return s, true
		}
	}
	return s, false
}

func (f *fleet) awaitEverywhere(t *testing.T, what, name string, ok func(s pool.Status, known bool) bool) {
	t.Helper()
	for i := range f.gateways {
		eventually(t, fmt.Sprintf("%s: %s at gateway %d", name, what, i), func() bool { return ok(f.status(t, i, name)) })
	}
}

func isReady(s pool.Status, known bool) bool { return known && s.Ready }

// ask sends a request through a gateway and returns the status.
func (f *fleet) ask(t *testing.T, gateway int) int {
	t.Helper()
	resp, _ := send(t, f.tr, "http://"+f.gateways[gateway].Listen+"/v1/chat/completions", f.key,
		`{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`)
	return resp.StatusCode
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// TestWorkersJoin: processes join two gateways over TLS, are restarted, killed
// and drained, and the database goes away and comes back.
func TestWorkersJoin(t *testing.T) {
	pg := testpg.NewServer(t)
	f := newFleet(t, pg.URL(), 2)
	f.mint(t, 2)
	one, two := f.worker(t, "w1"), f.worker(t, "w2")
	f.awaitEverywhere(t, "ready", "w1", isReady)
	f.awaitEverywhere(t, "ready", "w2", isReady)
	first, _ := f.status(t, 0, "w1")
	if first.From != pool.FromJoined || !strings.HasPrefix(first.URL, "https://127.0.0.1:") {
		t.Errorf("status %+v", first)
	}
	if resp, err := f.tr.RoundTrip(mustGet(t, "http"+strings.TrimPrefix(first.URL, "https")+"/health")); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("the worker answers without TLS")
		}
	}
	for i := range f.gateways {
		eventually(t, "the key works", func() bool { return f.ask(t, i) == http.StatusOK })
	}

	// A process that takes the place of a dead one needs no token, and nothing of
	// the dead one is held against it.
	one.Kill()
	<-one.Done()
	f.awaitEverywhere(t, "out", "w1", func(s pool.Status, known bool) bool { return !known || !s.Ready })
	one = f.worker(t, "w1")
	f.awaitEverywhere(t, "a new epoch", "w1", func(s pool.Status, known bool) bool {
		return isReady(s, known) && s.Epoch != first.Epoch && s.Breaker == "closed" && !s.Suspect
	})

	pg.Stop()
	for i := range f.gateways {
		if got := f.ask(t, i); got != http.StatusOK {
			t.Errorf("gateway %d without the database: %d", i, got)
		}
	}
	pg.Start(t)
	f.awaitEverywhere(t, "heard of since the database is back", "w2", func(s pool.Status, known bool) bool {
		return isReady(s, known) && *s.HeartbeatMs < 5000
	})

	// A worker that drains is a member no more.
	go one.Stop(30 * time.Second)
	f.awaitEverywhere(t, "left", "w1", func(_ pool.Status, known bool) bool { return !known })
	<-one.Done()
	for i := range f.gateways {
		if got := f.ask(t, i); got != http.StatusOK {
			t.Errorf("gateway %d with one worker: %d", i, got)
		}
	}
	if err := f.admin(t, http.MethodDelete, "instances/w2", nil, nil); err != nil {
		t.Fatal(err)
	}
	f.awaitEverywhere(t, "forgotten", "w2", func(_ pool.Status, known bool) bool { return !known })
	select {
	case <-two.Done(): // it was told, and has ended
	case <-time.After(time.Minute):
		t.Error("a worker that was removed goes on")
	}
	if got := f.ask(t, 0); got != http.StatusServiceUnavailable {
		t.Errorf("without any worker: %d", got)
	}
}

func mustGet(t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestWorkerThatMayNotJoin ends with the cloud's words, and tells no secret.
func TestWorkerThatMayNotJoin(t *testing.T) {
	f := newFleet(t, testpg.Start(t), 1)
	f.mint(t, 1)
	token, err := os.ReadFile(f.token)
	if err != nil {
		t.Fatal(err)
	}
	fails := func(name, want string, more ...string) {
		t.Helper()
		w := f.worker(t, name, more...)
		<-w.Done()
		if said := w.out.String(); !strings.Contains(said, want) || strings.Contains(said, string(token[18:40])) {
			t.Errorf("%v: want %q, it says %s", more, want, said)
		}
	}
	other := strings.Replace(string(token), string(token[18:22]), "AAAA", 1)
	file := filepath.Join(f.dir, "wrong")
	if err := os.WriteFile(file, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	fails("w1", "not valid here", "--join-token-file", file)
	if err := os.WriteFile(file, []byte(string(token[:len(token)-5])+"AAAA"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails("w1", "does not have the pin of the join token", "--join-token-file", file)
	fails("w1", "no pool of this cloud serves", "--served-model-name", "other")
	fails("w1", "worker-tokens create", "--data-dir", filepath.Join(f.dir, "elsewhere"), "--join-token-file", "")
	fails("w2", "as many workers as it may")
	fails("w1", "no such file", "--data-dir", filepath.Join(f.dir, "elsewhere"), "--join-token-file", filepath.Join(f.dir, "none"))
}
