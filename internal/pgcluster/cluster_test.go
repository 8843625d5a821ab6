package pgcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/internal/cli"
)

// The test binary is its own guard and its own "weir up".
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		env := cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
		switch os.Args[1] {
		case "postgres-guard":
			os.Exit(cli.Main(context.Background(), env, []cli.Command{GuardCommand()}, os.Args[1:]))
		case "test-parent":
			testParent(os.Args[2])
		}
	}
	os.Exit(m.Run())
}

// testParent starts a cluster, prints "ready" and waits to be killed.
func testParent(dir string) {
	c, err := Open(context.Background(), options(dir))
	if err == nil {
		_, err = c.Start(context.Background())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

func options(dir string) Options {
	self, _ := os.Executable()
	return Options{
		Dir: dir, Guard: []string{self, "postgres-guard"}, Settings: []string{"fsync=off"},
		elsewhere: []string{filepath.Join("/var/tmp", "weir-pgcluster-test-"+strconv.Itoa(os.Getpid()))},
	}
}

// dataDir makes a folder that an unprivileged user may enter, which t.TempDir
// is not when root runs the test.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "weir-pgcluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mustOpen(t *testing.T, o Options) *Cluster {
	t.Helper()
	c, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func query(t *testing.T, c *Cluster, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var s string
	if err := conn.QueryRow(t.Context(), sql).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// gone waits until no process has the pid any more.
func gone(t *testing.T, pid int, limit time.Duration) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for syscall.Kill(pid, 0) == nil {
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs after %v", pid, limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func postmaster(t *testing.T, c *Cluster) int {
	t.Helper()
	pid := readPID(filepath.Join(c.data(), "postmaster.pid"))
	if pid <= 0 {
		t.Fatal("no postmaster.pid")
	}
	return pid
}

func TestClusterKeepsItsData(t *testing.T) {
	dir := dataDir(t)
	c := mustOpen(t, options(dir))
	child, err := c.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := query(t, c, `show listen_addresses`); got != "" {
		t.Errorf("listens on %q", got)
	}
	conn, err := pgx.Connect(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `create table kept (v text); insert into kept values ('yes')`); err != nil {
		t.Fatal(err)
	}
	conn.Close(t.Context())
	pid := postmaster(t, c)
	child.Stop(stopGrace)
	gone(t, pid, time.Second)
	if child.Err() != nil {
		t.Errorf("the guard's end: %v", child.Err())
	}

	// A pid file whose pid now belongs to a program that is no postgres.
	stale := fmt.Sprintf("%d\n%s\n", os.Getpid(), c.data())
	if err := os.WriteFile(filepath.Join(c.data(), "postmaster.pid"), []byte(stale), 0o644); err != nil {
		t.Fatal(err)
	}
	c = mustOpen(t, options(dir))
	if child, err = c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer child.Stop(stopGrace)
	if got := query(t, c, `select v from kept`); got != "yes" {
		t.Errorf("got %q", got)
	}

	t.Run("a second start is refused", func(t *testing.T) {
		s := c.server()
		s.leftover = 50 * time.Millisecond
		err := s.run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "in use by process") {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("the guard is killed", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("only Linux has a parent-death signal")
		}
		pid := postmaster(t, c)
		child.Kill()
		gone(t, pid, 10*time.Second)
	})
}

func TestKilledParentLeavesNothing(t *testing.T) {
	dir := dataDir(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(self, "test-parent", dir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 400)
	n, _ := out.Read(line)
	if got := strings.TrimSpace(string(line[:n])); got != "ready" {
		_ = parent.Process.Kill()
		_ = parent.Wait()
		t.Fatalf("parent: %s", got)
	}
	c := mustOpen(t, options(dir))
	pid := postmaster(t, c)
	// A client that never leaves must not keep the server alive.
	conn, err := pgx.Connect(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	if _, err := conn.Exec(t.Context(), `select 1`); err != nil {
		t.Errorf("clients get no time to write what they hold: %v", err)
	}
	gone(t, pid, 10*time.Second)
}

func TestRootOnlyFolderMovesTheCluster(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	outer, err := os.MkdirTemp("/tmp", "weir-closed-") // 0700, root's
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(outer, "data")
	o := options(dir)
	t.Cleanup(func() { os.RemoveAll(outer); os.RemoveAll(o.elsewhere[0]) })
	c := mustOpen(t, o)
	if !strings.HasPrefix(c.Home(), o.elsewhere[0]+"/") {
		t.Fatalf("home %s", c.Home())
	}
	if again := mustOpen(t, o); again.Home() != c.Home() {
		t.Errorf("second start: %s, first %s", again.Home(), c.Home())
	}
	t.Run("removed", func(t *testing.T) {
		o := o
		o.Dir = filepath.Join(outer, "other")
		c := mustOpen(t, o)
		child, err := c.Start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := Remove(o.Dir); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("while it runs: %v", err)
		}
		child.Stop(stopGrace)
		pointer, kept := filepath.Join(o.Dir, pointerFile), filepath.Join(outer, "kept")
		if err := errors.Join(os.Mkdir(kept, 0o700), os.WriteFile(pointer, []byte(kept), 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := Remove(o.Dir); err == nil || !strings.Contains(err.Error(), "not marked") {
			t.Errorf("a pointer to somebody's folder: %v", err)
		}
		if err := os.WriteFile(pointer, []byte(c.Home()), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Remove(o.Dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(c.Home()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("still there: %v", err)
		}
		mustOpen(t, o) // and a new one can be made
	})
	if err := os.RemoveAll(c.Home()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "restore it, or remove that file") {
		t.Errorf("lost cluster: %v", err)
	}
}

func TestInterruptedAndDamagedClusters(t *testing.T) {
	dir := dataDir(t)
	home := filepath.Join(dir, "postgres")
	if err := os.MkdirAll(filepath.Join(home, "data.new", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := mustOpen(t, options(dir)) // half-finished initdb
	version := filepath.Join(c.data(), "PG_VERSION")
	for content, want := range map[string]string{"99\n": "postgresql-99", "x\n": "damaged"} {
		if err := os.WriteFile(version, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), options(dir)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("PG_VERSION %q: got %v", content, err)
		}
	}
	if err := os.Remove(version); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), options(dir)); err == nil || !strings.Contains(err.Error(), "restore or remove it") {
		t.Errorf("no PG_VERSION: got %v", err)
	}
}

func TestDeepFolderGetsAShortSocket(t *testing.T) {
	dir := filepath.Join(dataDir(t), strings.Repeat("d", 90))
	c := mustOpen(t, options(dir))
	t.Cleanup(func() { os.RemoveAll(shortDir(c.Home())) })
	if c.socketDir() != shortDir(c.Home()) {
		t.Fatalf("socket folder %s", c.socketDir())
	}
	child, err := c.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	child.Stop(stopGrace)
	if err := os.Chmod(shortDir(c.Home()), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := checkOwner(shortDir(c.Home()), c.cred); err == nil {
		t.Error("a folder open to all was accepted")
	}
}

func TestServerThatCannotStartSaysWhy(t *testing.T) {
	o := options(dataDir(t))
	o.Settings = []string{"shared_buffers=nonsense"}
	c := mustOpen(t, o)
	_, err := c.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "shared_buffers") {
		t.Fatalf("got %v", err)
	}
}

func TestGuardUsage(t *testing.T) {
	var out bytes.Buffer
	code := cli.Main(t.Context(), cli.Env{Stdout: &out, Stderr: &out}, []cli.Command{GuardCommand()}, []string{"postgres-guard"})
	if code != cli.ExitUsage {
		t.Errorf("exit %d: %s", code, out.String())
	}
	if _, err := FindBinaries(t.Context(), t.TempDir(), 0); !errors.Is(err, ErrNoServer) {
		t.Errorf("empty folder: %v", err)
	}
}
