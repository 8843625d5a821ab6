package pgcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirhq/weir/internal/proc"
)

// server is one run of the postgres program.
type server struct {
	postgres  string
	data      string
	socketDir string
	cred      *syscall.Credential
	settings  []string
	out       io.Writer
	leftover  time.Duration // how long to wait for the server of a run before
}

// settings for a small machine with one client program. They are given at
// each start, so that a new binary brings its own.
func (s server) args() []string {
	kv := []string{
		"listen_addresses=", // Unix socket only
		"unix_socket_directories=" + s.socketDir,
		"unix_socket_permissions=0700",
		"port=5432",
		"max_connections=60",
		"shared_buffers=64MB",
		"work_mem=4MB",
		"max_wal_size=256MB",
		"min_wal_size=32MB",
		"wal_level=minimal",
		"max_wal_senders=0",
		"max_parallel_workers_per_gather=0", // containers have little shared memory
		"jit=off",
		"timezone=UTC",
		"log_timezone=UTC",
		"logging_collector=off",
		"idle_in_transaction_session_timeout=60s",
	}
	args := []string{"-D", s.data}
	for _, v := range append(kv, s.settings...) {
		args = append(args, "-c", v)
	}
	return args
}

// Steps of a stop, from its beginning. A lost parent takes the database's
// clients with it: they get time to write what they still hold ("smart"
// waits for them). All is over before the 10 s that Weir promises.
var (
	stopLost    = []step{{0, syscall.SIGTERM}, {5 * time.Second, syscall.SIGINT}, {7 * time.Second, syscall.SIGQUIT}, {9 * time.Second, syscall.SIGKILL}}
	stopOrdered = []step{{0, syscall.SIGINT}, {5 * time.Second, syscall.SIGQUIT}, {8 * time.Second, syscall.SIGKILL}}
)

type step struct {
	at  time.Duration
	sig syscall.Signal
}

// run serves until ctx ends or postgres does, and returns when postgres is
// gone: nil after an ordered stop.
func (s server) run(ctx context.Context) error {
	if err := s.clearPID(ctx); err != nil {
		return err
	}
	cmd := exec.Command(s.postgres, s.args()...)
	cmd.Dir = s.data
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = s.out, s.out
	// A group of its own: a terminal's Ctrl-C must reach the guard alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.cred}
	dieWithParent(cmd.SysProcAttr)

	started, done := make(chan error, 1), make(chan error, 1)
	go func() {
		// Linux sends the death signal when the starting thread ends, so the
		// thread stays for as long as postgres runs.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	select {
	case err := <-done:
		return fmt.Errorf("postgres ended: %w", orClean(err))
	case <-ctx.Done():
	}
	steps := stopOrdered
	if errors.Is(context.Cause(ctx), proc.ErrParentGone) {
		steps = stopLost
	}
	return stop(cmd.Process, done, steps)
}

func orClean(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

func stop(p *os.Process, done <-chan error, steps []step) error {
	began := time.Now()
	for _, st := range steps {
		timer := time.NewTimer(st.at - time.Since(began))
		select {
		case <-done:
			timer.Stop()
			return nil
		case <-timer.C:
		}
		if err := p.Signal(st.sig); err != nil {
			break // it has just ended
		}
	}
	<-done
	return nil
}

// leftoverWait covers the stop of a server whose guard has just lost its parent.
const leftoverWait = 12 * time.Second

// clearPID deals with the postmaster.pid of a run before. A server that still
// runs gets time to end. A pid that now belongs to another program, as after a
// reboot or in a container, would stop Postgres from starting: its file goes.
func (s server) clearPID(ctx context.Context) error {
	path := filepath.Join(s.data, "postmaster.pid")
	deadline := time.Now().Add(s.leftover)
	for {
		pid := readPID(path)
		if pid <= 0 || syscall.Kill(pid, 0) != nil {
			return nil // none, or stale: Postgres clears that itself
		}
		if isOther(pid) {
			return os.Remove(path)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the database in %s is in use by process %d: stop the other 'weir up', or that process", s.data, pid)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// readPID returns the pid in the first line of a postmaster.pid, or 0.
func readPID(path string) int {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	line, _ := bufio.NewReader(io.LimitReader(f, 64)).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}
