// Package e2e runs the real binary: every role in its own process, real models,
// real Postgres, real HTTP/3. It holds tests only.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/pgcluster"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/testproc"
)

// soak runs the full counts instead of the short ones.
var soak = os.Getenv("WEIR_SOAK") != ""

// count is n in soak and short otherwise.
func count(short, n int) int {
	if soak {
		return n
	}
	return short
}

var shared struct {
	sync.Once
	sys *system
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.sys != nil {
		shared.sys.stop()
		_ = os.RemoveAll(filepath.Dir(shared.sys.DataDir))
	}
	testproc.Clean()
	os.Exit(code)
}

// system is a running "weir up".
type system struct {
	client.Ready
	cmd    *exec.Cmd
	parent *os.File // the write end of its parent pipe: it ends with this process, however that ends
	base   int
	out    *testproc.Log
	done   chan struct{}
	took   time.Duration // from start to the ready file
}

// running returns the system that tests share; a test that breaks things
// starts its own.
func running(t *testing.T) *system {
	t.Helper()
	shared.Do(func() {
		dir, err := os.MkdirTemp("", "weir-e2e-")
		if err != nil {
			shared.err = err
			return
		}
		shared.sys, shared.err = start(dir)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.sys
}

// own starts a system for one test, on a data directory of its own.
func own(t *testing.T) *system {
	t.Helper()
	s, err := start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

func start(dir string, args ...string) (*system, error) { return startWith(dir, nil, args...) }

// startWith is start with additions to the environment.
func startWith(dir string, env []string, args ...string) (*system, error) {
	bin, err := testproc.Binary()
	if err != nil {
		return nil, err
	}
	base, err := freeBase()
	if err != nil {
		return nil, err
	}
	readyFile := filepath.Join(dir, "e2e-ready.json")
	_ = os.Remove(readyFile)
	s := &system{base: base, out: &testproc.Log{}, done: make(chan struct{})}
	s.cmd = exec.Command(bin, append([]string{"up", "--data", filepath.Join(dir, "data"), "--listen-base", fmt.Sprint(base), "--ready-file", readyFile}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.Env = append(append(os.Environ(), env...), proc.ParentFD+"=3")
	s.cmd.WaitDelay = time.Second
	held, parent, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer held.Close()
	s.cmd.ExtraFiles, s.parent = []*os.File{held}, parent
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.done)
	}()
	deadline := time.After(2 * time.Minute)
	for {
		if r, err := client.ReadReady(readyFile); err == nil {
			s.Ready, s.took = r, time.Since(began)
			return s, nil
		}
		select {
		case <-s.done:
			return nil, fmt.Errorf("weir up ended: %s", s.out)
		case <-deadline:
			s.stop()
			return nil, fmt.Errorf("weir up is not ready: %s", s.out)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *system) stop() {
	_ = s.cmd.Process.Signal(os.Interrupt)
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
	// A cluster that lies outside of the data directory outlives its folder.
	if err := pgcluster.Remove(s.DataDir); err != nil {
		fmt.Fprintln(os.Stderr, "cluster of", s.DataDir, "is left:", err)
	}
}

// freeBase finds 16 neighbouring free ports.
func freeBase() (int, error) {
	// Below the numbers of clients' sockets; testproc.FreeAddr has those below.
	for base := 16000 + os.Getpid()%1000*16; base < 32000; base += 16 {
		if allFree(base) {
			return base, nil
		}
	}
	return 0, fmt.Errorf("no 16 free ports")
}

func allFree(base int) bool {
	for p := base; p < base+16; p++ {
		tcp, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			return false
		}
		tcp.Close()
		udp, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			return false
		}
		udp.Close()
	}
	return true
}

// post sends a chat request and returns status, headers and body.
func post(t *testing.T, url, key, body string, headers ...string) (int, http.Header, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, data
}

// chatBody is a request of one user message.
func chatBody(model, prompt, more string) string {
	p, _ := json.Marshal(prompt)
	return fmt.Sprintf(`{"model":%q,"temperature":0,"messages":[{"role":"user","content":%s}]%s}`, model, p, more)
}

// processes lists the process ids whose command line mentions text.
func processes(t *testing.T, text string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Skip("no /proc here: leftover processes cannot be looked for")
	}
	var pids []int
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.Contains(string(cmdline), text) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// cluster is the folder of the system's private Postgres, which may lie
// outside of the data directory.
func (s *system) cluster(t *testing.T) string {
	t.Helper()
	_, rest, found := strings.Cut(s.out.String(), "private Postgres in ")
	if !found {
		t.Fatalf("it does not say where the cluster is: %s", s.out)
	}
	home, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(home)
}

// left lists the processes of a system that lives, or lived, in dir.
func (s *system) left(t *testing.T, dir string) []int {
	t.Helper()
	return append(processes(t, dir), processes(t, s.cluster(t))...)
}

// pid returns the process of a child that weir up started, by its log name.
func (s *system) pid(t *testing.T, child string) int {
	t.Helper()
	pids := processes(t, filepath.Join(s.DataDir, "config", child+".yaml"))
	if len(pids) != 1 {
		t.Fatalf("child %s has processes %v, want one", child, pids)
	}
	return pids[0]
}

func (s *system) kill(t *testing.T, child string) {
	t.Helper()
	if err := syscall.Kill(s.pid(t, child), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// eventually polls f until it is true.
func eventually(t *testing.T, what string, within time.Duration, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, within)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
