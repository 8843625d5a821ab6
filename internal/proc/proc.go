// Package proc runs Weir's child processes. Each child holds the read end of a
// pipe from its parent: when the parent dies, however it dies, the child reads
// EOF, drains and exits. A Supervisor restarts a child that ends by itself.
package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// ParentFD is the environment variable that tells a child which file
// descriptor is its parent pipe.
const ParentFD = "WEIR_PARENT_FD"

// Main returns the context of a long-running role: it ends at SIGINT, SIGTERM
// or the death of the parent. stop frees its resources; a second signal after
// the first kills the process at once, as users expect. A child leaves killing to
// its parent: signals that come late, or twice (of the parent, and of who stops its
// whole group), must not end its draining.
func Main(parent context.Context) (ctx context.Context, stop func()) {
	signals, stopSignals := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancelCause(signals)
	pipe := parentPipe()
	if pipe == nil {
		context.AfterFunc(signals, stopSignals)
		return ctx, func() { cancel(nil); stopSignals() }
	}
	go func() {
		_, _ = io.Copy(io.Discard, pipe)
		cancel(ErrParentGone)
	}()
	return ctx, func() { cancel(nil) }
}

// ErrParentGone is the cause of Main's context when the parent has died.
var ErrParentGone = errors.New("parent process is gone")

func parentPipe() *os.File {
	fd, err := strconv.Atoi(os.Getenv(ParentFD))
	if err != nil || fd < 3 {
		return nil
	}
	syscall.CloseOnExec(fd) // a grandchild gets a pipe of its own
	return os.NewFile(uintptr(fd), "parent-pipe")
}

// Spec says how to start a child.
type Spec struct {
	Name string   // for messages and logs, e.g. "cloud"
	Path string   // executable
	Args []string // without the program's name; never a secret
	Env  []string // added to the parent's environment
	Dir  string
	// Output receives the child's stdout and stderr. A pipe (any io.Writer but
	// *os.File) is copied by a goroutine that ends with the child.
	Output io.Writer
	// Credential, when set, is the user that the child runs as.
	Credential *syscall.Credential
}

// Child is a running process.
type Child struct {
	name string
	cmd  *exec.Cmd
	pipe *os.File // write end; closing it asks the child to drain
	done chan struct{}
	err  error
}

// Start starts a child in its own process group, so that a terminal's Ctrl-C
// reaches only the parent, which then stops its children in order.
func Start(s Spec) (*Child, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	defer r.Close()
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Env = append(append(os.Environ(), s.Env...), ParentFD+"=3")
	cmd.Dir = s.Dir
	cmd.ExtraFiles = []*os.File{r}
	cmd.Stdout, cmd.Stderr = s.Output, s.Output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.Credential}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	c := &Child{name: s.Name, cmd: cmd, pipe: w, done: make(chan struct{})}
	go func() {
		c.err = cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// PID returns the process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err is nil after exit status 0. It may be called after Done.
func (c *Child) Err() error { return c.err }

// Stop asks the child to drain (SIGTERM and the end of its parent pipe), waits
// up to grace, then kills its process group. It returns when the child is gone.
func (c *Child) Stop(grace time.Duration) {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	_ = c.pipe.Close()
	select {
	case <-c.done:
		return
	case <-time.After(grace):
	}
	c.Kill()
	<-c.done
}

// Kill ends the child and its process group at once.
func (c *Child) Kill() { _ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) }
