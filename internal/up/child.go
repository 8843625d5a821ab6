package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/proc"
)

// Children stop one layer after the other (edge, cloud, workers, database), so
// the sum of the layers' graces stays below the ten seconds that Ctrl-C may
// take. drain is what a role gives its streams, less than its grace.
const (
	grace = 2200 * time.Millisecond
	drain = "1500ms"
)

// maxLog is the size at which a child's log is set aside at the next start.
const maxLog = 8 << 20

// child is one supervised process with its log file.
type child struct {
	sup    *proc.Supervisor
	log    string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of a start that failed; read after done
	ended  chan error
}

// launch supervises a role, "weir ARGS...", until stopAll.
func (s *supervisor) launch(name string, env []string, args ...string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	return s.launchSpec(proc.Spec{Name: name, Path: exe, Args: args, Env: env})
}

// launchSpec supervises a process, whose output goes to its log file.
func (s *supervisor) launchSpec(spec proc.Spec) (*child, error) {
	logPath := s.path("log", spec.Name+".log")
	if st, err := os.Stat(logPath); err == nil && st.Size() > maxLog {
		_ = os.Rename(logPath, logPath+".1") // the older log is a convenience
	}
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", spec.Name, err)
	}
	if spec.Output != nil {
		spec.Output = io.MultiWriter(out, spec.Output)
	} else {
		spec.Output = out
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &child{log: logPath, cancel: cancel, done: make(chan struct{}), ended: make(chan error, 1)}
	c.sup = &proc.Supervisor{
		Spec:    spec,
		Backoff: proc.DefaultBackoff, Grace: grace, Log: s.log,
		OnStart: func(p *proc.Child) { go c.watch(p) },
	}
	go func() {
		defer close(c.done)
		defer out.Close()
		c.err = c.sup.Run(ctx)
	}()
	s.children = append(s.children, c)
	return c, nil
}

// watch reports the first end of a process, for waitReady.
func (c *child) watch(p *proc.Child) {
	<-p.Done()
	select {
	case c.ended <- p.Err():
	default:
	}
}

func (c *child) stop() {
	c.cancel()
	<-c.done
}

// waitReady polls url until it answers 200 with a body that enough accepts. A
// child that ends meanwhile fails the start with the last line it logged.
func (c *child) waitReady(ctx context.Context, url string, enough func(body []byte) bool) error {
	client := &http.Client{Timeout: time.Second}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if body, ok := get200(client, url); ok && enough(body) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: see %s", c.sup.Spec.Name, context.Cause(ctx), c.log)
		case <-c.done:
			return c.err
		case err := <-c.ended:
			return fmt.Errorf("%s ended at its start (%w): %s", c.sup.Spec.Name, orExit0(err), lastLine(c.log))
		case <-tick.C:
		}
	}
}

func orExit0(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// anyBody accepts whatever a ready child says.
func anyBody([]byte) bool { return true }

func get200(client *http.Client, url string) ([]byte, bool) {
	resp, err := client.Get(url)
	if err != nil {
		return nil, false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return body, err == nil && resp.StatusCode == http.StatusOK
}

// lastLine returns the last line of a log, for an error message.
func lastLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return path
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	if last := strings.TrimSpace(string(lines[len(lines)-1])); last != "" {
		return last
	}
	return "see " + path
}

func newLog(w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelWarn
	if verbose {
		level = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
