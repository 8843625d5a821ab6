// Package watch is a controller for SGLang replicas: it records expert loads
// over their HTTP, plans, writes the file of --init-expert-location, and rolls
// restarts through a hook of the operator, one replica at a time. SGLang takes
// no placement while it runs, so a restart is the only way in.
package watch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/experts/format"
)

// Errors that callers tell apart.
var (
	// ErrReplica says that a replica did not answer as SGLang does.
	ErrReplica = errors.New("replica does not answer as expected")
	// ErrDump says that a replica wrote no usable recording.
	ErrDump = errors.New("no recording appeared")
	// ErrHook says that the operator's hook failed or the replica did not come
	// back.
	ErrHook = errors.New("replica could not be restarted")
	// ErrOptions says that a watcher cannot be made from its options.
	ErrOptions = errors.New("watcher cannot be started")
)

// Replica is one SGLang server.
type Replica struct {
	URL string // base, e.g. http://host:30000
	Dir string // its SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR, as seen from here
}

// client speaks to one replica.
type client struct {
	http    *http.Client
	replica Replica
	key     string // admin key, sent as a bearer token; never logged
	poll    time.Duration
}

// maxReply bounds what is read of an answer.
const maxReply = 8 << 20

// get sends a request and returns at most maxReply bytes of a 200 answer.
func (c client) do(ctx context.Context, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.replica.URL, "/")+path, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReplica, err)
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReplica, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrReplica, path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: %s: %s (the recorder needs --expert-distribution-recorder-mode stat)", ErrReplica, path, resp.Status)
	}
	return body, nil
}

// record starts the recorder, waits for the window, stops, dumps, and reads
// the file that appeared. A dump resets the recorder.
func (c client) record(ctx context.Context, window time.Duration) (format.Loads, error) {
	_, startErr := c.do(ctx, http.MethodPost, "/start_expert_distribution_record")
	var waitErr error
	if startErr == nil {
		waitErr = wait(ctx, window)
	}
	// Stop even when told to end or when the answer to start was lost: a
	// recorder left running slows serving.
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	_, stopErr := c.do(stopCtx, http.MethodPost, "/stop_expert_distribution_record")
	for _, err := range []error{startErr, waitErr, stopErr} {
		if err != nil {
			return format.Loads{}, err
		}
	}
	before, err := c.dumps()
	if err != nil {
		return format.Loads{}, err
	}
	if _, err := c.do(ctx, http.MethodPost, "/dump_expert_distribution_record"); err != nil {
		return format.Loads{}, err
	}
	return c.dumped(ctx, before)
}

// Timeouts of the protocol.
const (
	stopTimeout = 10 * time.Second
	dumpTimeout = 60 * time.Second
)

// dumps lists the recordings that lie in the folder.
func (c client) dumps() (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(c.replica.Dir, "expert_distribution_recorder_*.pt"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDump, err)
	}
	out := make(map[string]bool, len(files))
	for _, f := range files {
		out[f] = true
	}
	return out, nil
}

// dumped waits for a new recording and reads it. A file that cannot be read
// may still be being written, so it is tried again until the timeout.
func (c client) dumped(ctx context.Context, before map[string]bool) (format.Loads, error) {
	ctx, cancel := context.WithTimeout(ctx, dumpTimeout)
	defer cancel()
	var last error
	for {
		now, err := c.dumps()
		if err != nil {
			return format.Loads{}, err
		}
		for f := range now {
			if before[f] {
				continue
			}
			l, err := format.ReadLoads(f)
			if err == nil {
				return l, nil
			}
			last = err
		}
		if err := wait(ctx, c.poll); err != nil {
			if last == nil {
				last = err
			}
			return format.Loads{}, fmt.Errorf("%w in the recorder folder of %s: %w", ErrDump, c.host(), last)
		}
	}
}

// host names the replica in messages, without credentials a URL may carry.
func (c client) host() string {
	if u, err := url.Parse(c.replica.URL); err == nil {
		return u.Host
	}
	return "a replica"
}

// balancedness scrapes sglang:eplb_balancedness, mean/max utilisation; ok is
// false where the metric is not exported.
func (c client) balancedness(ctx context.Context) (value float64, ok bool, err error) {
	body, err := c.do(ctx, http.MethodGet, "/metrics")
	if err != nil {
		return 0, false, err
	}
	lines := bufio.NewScanner(strings.NewReader(string(body)))
	lines.Buffer(nil, maxReply)
	for lines.Scan() {
		name, rest, found := strings.Cut(lines.Text(), "{")
		if found {
			_, rest, _ = strings.Cut(rest, "}")
		} else {
			name, rest, _ = strings.Cut(lines.Text(), " ")
		}
		fields := strings.Fields(rest)
		if strings.TrimSpace(name) != "sglang:eplb_balancedness" || len(fields) == 0 {
			continue
		}
		v, err := strconv.ParseFloat(fields[0], 64)
		if err == nil && v > 0 && v <= 1+1e-3 {
			return v, true, nil
		}
	}
	return 0, false, nil
}

// ready waits until the replica is healthy.
func (c client) ready(ctx context.Context) error {
	var last error
	for {
		if _, last = c.do(ctx, http.MethodGet, "/health"); last == nil {
			return nil
		}
		if err := wait(ctx, c.poll); err != nil {
			return fmt.Errorf("%w: %s is not healthy: %w", ErrHook, c.host(), last)
		}
	}
}

// wait sleeps for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkDir reports whether the recorder folder is there.
func checkDir(dir string) error {
	st, err := os.Stat(dir)
	if err != nil || !st.IsDir() {
		return fmt.Errorf("%w: recorder folder %q is not a folder here", ErrOptions, dir)
	}
	return nil
}
