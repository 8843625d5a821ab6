package roster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// PathSnapshot is where a device gets its tenant's snapshot.
const PathSnapshot = "/edge/v1/snapshot"

// Cloud sends one request to the cloud.
type Cloud interface {
	Do(context.Context, uplink.Request) (*uplink.Response, error)
}

const (
	pollTimeout = 20 * time.Second
	pollMost    = 2 * time.Minute // back-off while polls fail
)

// Run fetches the snapshot at once and then each every until ctx ends, less
// often while that fails. An unreachable cloud is the uplink's to report.
func (r *Roster) Run(ctx context.Context, cloud Cloud, every time.Duration) error {
	wait := every
	for {
		err := r.Poll(ctx, cloud)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			wait = every
		case errors.Is(err, uplink.ErrDown):
			wait = every // the uplink answers at once when it is down
		default:
			r.log.Warn("tenant snapshot was not updated", "err", err)
			wait = min(2*wait, max(pollMost, every))
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// Poll fetches the snapshot once; an unchanged one costs an empty answer.
func (r *Roster) Poll(ctx context.Context, cloud Cloud) error {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	resp, err := cloud.Do(ctx, uplink.Request{Method: http.MethodGet, Path: PathSnapshot, Header: r.Conditional()})
	if err != nil {
		return fmt.Errorf("fetch snapshot: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, tenants.MaxSnapshotBytes+1))
	if err != nil {
		return fmt.Errorf("fetch snapshot: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("fetch snapshot: the cloud answered %d: %s", resp.StatusCode, openai.ParseError(resp.StatusCode, body).Message)
	}
	return r.Update(body, resp.Header.Get("ETag"))
}

// Conditional returns the headers that make the cloud answer 304 when the
// snapshot in use is the newest.
func (r *Roster) Conditional() http.Header {
	h := http.Header{}
	if tag := r.ETag(time.Now()); tag != "" {
		h.Set("If-None-Match", tag)
	}
	return h
}
