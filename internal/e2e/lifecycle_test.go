package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/testproc"
)

func (s *system) chat(t *testing.T, mode, prompt string) *client.Answer {
	t.Helper()
	c := &client.Client{URL: s.EdgeURL, Key: s.AppKey, HTTP: http.DefaultClient}
	a, err := c.Chat(t.Context(), client.Request{Prompt: prompt, Mode: mode}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestReadyFile(t *testing.T) {
	s := running(t)
	t.Logf("ready after %s", s.took)
	var raw map[string]string
	file := filepath.Join(filepath.Dir(s.DataDir), "e2e-ready.json")
	data, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(data, &raw) != nil {
		t.Fatalf("%s, %v", data, err)
	}
	for _, k := range []string{"edge_url", "cloud_url", "cloud_h3_addr", "app_key", "admin_token", "data_dir"} {
		if raw[k] == "" {
			t.Errorf("%s is missing", k)
		}
	}
	if raw["edge_url"] != fmt.Sprintf("http://127.0.0.1:%d", s.base) {
		t.Errorf("edge_url %s, listen base %d", raw["edge_url"], s.base)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", st.Mode(), err)
	}
	out := s.out.String()
	if !strings.Contains(out, "weir is ready") || !strings.Contains(out, "curl "+s.EdgeURL) {
		t.Errorf("printed %s", out)
	}
}

// TestPrintedCommands runs the commands that weir up prints, as printed.
func TestPrintedCommands(t *testing.T) {
	out := running(t).out.String()
	_, rest, _ := strings.Cut(out, "Try:\n")
	try, _, found := strings.Cut(rest, "\n\nCtrl-C")
	last := strings.LastIndex(try, "\n")
	if !found || last < 0 {
		t.Fatalf("no commands in %s", out)
	}
	for command, want := range map[string]string{try[:last]: "light.on", try[last:]: "405"} {
		answer, err := exec.CommandContext(t.Context(), "sh", "-c", command).Output()
		if err != nil || !strings.Contains(string(answer), want) {
			t.Errorf("%s gave %s, %v", command, answer, err)
		}
	}
}

func TestChatCommand(t *testing.T) {
	s := running(t)
	bin, _ := testproc.Binary()
	ready := filepath.Join(s.DataDir, "ready.json")
	for mode, tier := range map[string]string{"edge-only": "tier edge", "cloud-only": "tier cloud", "auto": "tier "} {
		cmd := exec.CommandContext(t.Context(), bin, "chat", "--ready-file", ready, "--mode", mode, lightPrompt)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), lightAnswer) || !strings.Contains(string(out), tier) ||
			!strings.Contains(string(out), "reason ") || !strings.Contains(string(out), "confidence ") {
			t.Errorf("mode %s: %s, %v", mode, out, err)
		}
	}
}

func TestCtrlCStopsEverythingAndDataSurvives(t *testing.T) {
	dir := t.TempDir()
	s, err := start(dir)
	if err != nil {
		t.Fatal(err)
	}
	key := s.AppKey
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.done:
	case <-time.After(10 * time.Second):
		t.Fatal("weir up did not stop within 10 s of Ctrl-C")
	}
	if left := s.left(t, dir); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	if s, err = start(dir); err != nil {
		t.Fatalf("second start: %v", err)
	}
	defer s.stop()
	if s.AppKey != key {
		t.Error("the second start has another key")
	}
	if a := s.chat(t, "auto", lightPrompt); a.Text != lightAnswer {
		t.Errorf("after the second start: %+v", a)
	}
}

func TestKillOfTheSupervisorLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s, err := start(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.left(t, dir)); n < 7 {
		t.Errorf("only %d processes are found, want the supervisor, cloud, edge, three workers, Postgres and its guard", n)
	}
	if err := syscall.Kill(s.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.done
	eventually(t, "all processes are gone", 10*time.Second, func() bool { return len(s.left(t, dir)) == 0 })
	s.stop() // removes the cluster
}

func TestKilledChildrenComeBack(t *testing.T) {
	s := own(t)
	for _, child := range []string{"decode-1", "prefill-1", "cloud", "edge"} {
		before := s.pid(t, child)
		s.kill(t, child)
		eventually(t, child+" is restarted", time.Minute, func() bool {
			pids := processes(t, filepath.Join(s.DataDir, "config", child+".yaml"))
			return len(pids) == 1 && pids[0] != before
		})
	}
	c := &client.Client{URL: s.EdgeURL, Key: s.AppKey, HTTP: http.DefaultClient}
	for _, mode := range []string{"edge-only", "cloud-only"} {
		eventually(t, mode+" answers again", time.Minute, func() bool {
			a, err := c.Chat(t.Context(), client.Request{Prompt: lightPrompt, Mode: mode}, nil)
			return err == nil && a.Text == lightAnswer
		})
	}
}

// upFails runs a weir up that must fail, and returns what it printed.
func upFails(t *testing.T, args ...string) string {
	t.Helper()
	bin, err := testproc.Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin, append([]string{"up"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("weir up %v did not fail: %s", args, out)
	}
	return string(out)
}

func TestStartFailsWithOneClearLine(t *testing.T) {
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+1))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b := fmt.Sprint(base)
	tests := []struct {
		name, want string
		args       []string
	}{
		{"port taken", fmt.Sprintf("port %d", base+1), []string{"--data", t.TempDir(), "--listen-base", b}},
		{"no libraries", "weir engine install", []string{"--data", t.TempDir(), "--listen-base", fmt.Sprint(base + 2), "--lib", t.TempDir()}},
		{"data is a file", "data directory", []string{"--data", file, "--listen-base", b}},
		{"unknown flag", "--help", []string{"--dta", "x"}},
		{"impossible base", "--listen-base", []string{"--data", t.TempDir(), "--listen-base", "80"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out := upFails(t, tt.args...)
			if !strings.Contains(out, tt.want) {
				t.Errorf("printed %q, want it to hold %q", out, tt.want)
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if last := lines[len(lines)-1]; !strings.HasPrefix(last, "weir up: ") {
				t.Errorf("the last line is %q", last)
			}
		})
	}
}

func TestTwoOnOneDataDirectory(t *testing.T) {
	s := running(t)
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	if out := upFails(t, "--data", s.DataDir, "--listen-base", fmt.Sprint(base)); !strings.Contains(out, "another weir up") {
		t.Errorf("printed %s", out)
	}
}

// TestRootOnlyDataDirectory needs root: Postgres then runs as another user,
// who may not enter the data directory.
func TestRootOnlyDataDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: a folder that only root may enter cannot be made")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := start(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	if home := s.cluster(t); strings.HasPrefix(home, dir) {
		t.Errorf("the cluster is in %s, where its user cannot go", home)
	}
	if a := s.chat(t, "cloud-only", lightPrompt); a.Text != lightAnswer {
		t.Errorf("got %+v", a)
	}
}
