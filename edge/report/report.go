// Package report sends an edge node's usage rows to the cloud in batches. The
// queue is bounded and in memory; rows left at a clean stop are kept in a
// file. The cloud drops rows that it has seen, so a batch is sent again
// whenever its answer was lost.
package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
)

// PathUsage is where a device reports usage.
const PathUsage = "/edge/v1/usage"

// Cloud sends one request to the cloud.
type Cloud interface {
	Do(context.Context, uplink.Request) (*uplink.Response, error)
}

// Options configure a Reporter. Zero values take the defaults named.
type Options struct {
	Cloud    Cloud
	Path     string        // file for rows left at a stop; "" keeps none
	Capacity int           // rows in memory: 20,000
	Batch    int           // rows in one request: 500
	Every    time.Duration // between requests: 1 s
	Log      *slog.Logger
}

// Reporter is safe for concurrent use.
type Reporter struct {
	opt  Options
	wake chan struct{}

	mu       sync.Mutex
	rows     []tenants.UsageRow
	dropped  uint64
	rejected uint64
	sent     uint64
}

// New returns a Reporter that holds the rows of the last clean stop.
func New(opt Options) (*Reporter, error) {
	if opt.Capacity <= 0 {
		opt.Capacity = 20_000
	}
	if opt.Batch <= 0 || opt.Batch > tenants.MaxUsageRows {
		opt.Batch = 500
	}
	if opt.Every <= 0 {
		opt.Every = time.Second
	}
	r := &Reporter{opt: opt, wake: make(chan struct{}, 1)}
	return r, r.load()
}

// Record queues the row of one attempt. When the queue is full the oldest row
// is lost and counted.
func (r *Reporter) Record(rec tenants.UsageRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rows) >= r.opt.Capacity {
		r.rows = r.rows[1:]
		r.dropped++
	}
	r.rows = append(r.rows, rec.Row())
	if len(r.rows) >= r.opt.Batch {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// Counts are a Reporter's totals since it started.
type Counts struct{ Queued, Sent, Rejected, Dropped uint64 }

// Counts returns the totals now.
func (r *Reporter) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Counts{uint64(len(r.rows)), r.sent, r.rejected, r.dropped}
}

// Run sends batches until ctx ends, then tries once more for at most a second
// and keeps what is left in the file.
func (r *Reporter) Run(ctx context.Context) error {
	wait := r.opt.Every
	for ctx.Err() == nil {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-r.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			continue
		}
		if err := r.flush(ctx); err != nil {
			if !errors.Is(err, uplink.ErrDown) && ctx.Err() == nil {
				r.opt.Log.Warn("usage was not reported, will try again", "err", err)
			}
			wait = min(2*wait, 30*time.Second)
			continue
		}
		wait = r.opt.Every
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.flush(last) // what it does not send is saved
	return r.save()
}

// flush sends all queued rows, batch by batch.
func (r *Reporter) flush(ctx context.Context) error {
	for {
		r.mu.Lock()
		batch := append([]tenants.UsageRow(nil), r.rows[:min(len(r.rows), r.opt.Batch)]...)
		r.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		reply, err := r.post(ctx, batch)
		if err != nil {
			return err
		}
		r.settle(batch, reply)
	}
}

// settle forgets the rows that were sent. The oldest of them may have been
// dropped from the queue meanwhile.
func (r *Reporter) settle(batch []tenants.UsageRow, reply *tenants.UsageReply) {
	r.mu.Lock()
	last := batch[len(batch)-1].AttemptID
	for i := range r.rows {
		if i < len(batch) && r.rows[i].AttemptID == last {
			r.rows = append([]tenants.UsageRow(nil), r.rows[i+1:]...)
			break
		}
	}
	r.sent += uint64(len(batch) - len(reply.Rejected))
	r.rejected += uint64(len(reply.Rejected))
	r.mu.Unlock()
	for _, bad := range reply.Rejected {
		r.opt.Log.Error("the cloud refused a usage row", "attempt", bad.AttemptID, "field", bad.Field, "problem", bad.Problem)
	}
}

func (r *Reporter) post(ctx context.Context, rows []tenants.UsageRow) (*tenants.UsageReply, error) {
	body, err := json.Marshal(tenants.UsageBatch{Rows: rows})
	if err != nil {
		return nil, fmt.Errorf("report usage: %w", err)
	}
	resp, err := r.opt.Cloud.Do(ctx, uplink.Request{
		Method: http.MethodPost, Path: PathUsage, Body: body,
		Header: http.Header{"Content-Type": {"application/json"}},
	})
	if err != nil {
		return nil, fmt.Errorf("report usage: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, tenants.MaxUsageBytes))
	if err != nil {
		return nil, fmt.Errorf("report usage: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("report usage: the cloud answered %d: %s", resp.StatusCode, openai.ParseError(resp.StatusCode, answer).Message)
	}
	var reply tenants.UsageReply
	if err := json.Unmarshal(answer, &reply); err != nil {
		return nil, fmt.Errorf("report usage: answer: %w", err)
	}
	return &reply, nil
}

func (r *Reporter) load() error {
	if r.opt.Path == "" {
		return nil
	}
	raw, err := os.ReadFile(r.opt.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kept usage: %w", err)
	}
	var kept tenants.UsageBatch
	if err := json.Unmarshal(raw, &kept); err != nil {
		r.opt.Log.Error("kept usage file is damaged, its rows are lost", "path", r.opt.Path, "err", err)
		return nil
	}
	r.rows = kept.Rows
	return nil
}

func (r *Reporter) save() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.opt.Path == "" {
		return nil
	}
	if len(r.rows) == 0 {
		if err := os.Remove(r.opt.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep usage: %w", err)
		}
		return nil
	}
	raw, err := json.Marshal(tenants.UsageBatch{Rows: r.rows})
	if err != nil {
		return fmt.Errorf("keep usage: %w", err)
	}
	if err := pki.WriteSecret(r.opt.Path, raw); err != nil {
		return fmt.Errorf("keep usage: %w", err)
	}
	r.opt.Log.Info("usage rows kept for the next start", "rows", len(r.rows))
	return nil
}
