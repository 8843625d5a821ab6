// Package report keeps an edge node's usage rows on disk, in the files of
// tenants/spool, and sends them to the cloud in batches. A row is safe from the
// process's death when Record returns. The cloud drops rows that it has seen,
// so a batch is sent again whenever its answer was lost.
package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/spool"
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
	Dir      string        // of the rows that wait; of this process alone
	MaxBytes int64         // of them, about 250 a row: 64 MiB
	Batch    int           // rows in one request: 500
	Every    time.Duration // between requests: 1 s
	Log      *slog.Logger
}

// Reporter is safe for concurrent use.
type Reporter struct {
	opt                     Options
	spool                   *spool.Spool
	sent, rejected, dropped atomic.Uint64
}

const segmentBytes = 1 << 20

// New opens the directory, with the rows that wait there. Run gives it up.
func New(opt Options) (*Reporter, error) {
	if opt.MaxBytes <= 0 {
		opt.MaxBytes = 64 << 20
	}
	if opt.Batch <= 0 || opt.Batch > tenants.MaxUsageRows {
		opt.Batch = 500
	}
	if opt.Every <= 0 {
		opt.Every = time.Second
	}
	s, err := spool.Open(spool.Options{Dir: opt.Dir, SegmentBytes: segmentBytes, MaxBytes: max(opt.MaxBytes, 3*segmentBytes), Log: opt.Log})
	if err != nil {
		return nil, fmt.Errorf("usage rows: %w", err)
	}
	return &Reporter{opt: opt, spool: s}, nil
}

// Record writes down the row of one attempt. When the files are full the row
// is lost, and counted: the node goes on serving.
func (r *Reporter) Record(rec tenants.UsageRecord) {
	if err := r.spool.Append(&rec); err != nil {
		r.dropped.Add(1)
		r.opt.Log.Error("usage row is lost", "attempt", rec.AttemptID, "err", err)
	}
}

// Counts are rows that wait, and totals since the start.
type Counts struct{ Queued, Sent, Rejected, Dropped uint64 }

// Counts returns the totals now.
func (r *Reporter) Counts() Counts {
	return Counts{uint64(r.spool.Stats().Pending), r.sent.Load(), r.rejected.Load(), r.dropped.Load()}
}

// Run sends batches until ctx ends, then tries once more for at most a second
// and leaves what waits to the next start.
func (r *Reporter) Run(ctx context.Context) error {
	wait := r.opt.Every
	for ctx.Err() == nil {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
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
	if err := r.flush(last); err != nil {
		r.opt.Log.Info("usage rows wait for the next start", "rows", r.spool.Stats().Pending)
	}
	return r.spool.Close()
}

// flush sends all rows that wait, batch by batch.
func (r *Reporter) flush(ctx context.Context) error {
	for {
		n, err := r.spool.Drain(ctx, r.opt.Batch, 1, r.deliver)
		if err != nil || n == 0 {
			return err
		}
	}
}

// deliver sends one batch. A row that the cloud refuses is done with too.
func (r *Reporter) deliver(ctx context.Context, batch []tenants.UsageRecord) error {
	rows := make([]tenants.UsageRow, len(batch))
	for i := range batch {
		rows[i] = batch[i].Row()
	}
	reply, err := r.post(ctx, rows)
	if err != nil {
		return err
	}
	r.sent.Add(uint64(len(rows) - len(reply.Rejected)))
	r.rejected.Add(uint64(len(reply.Rejected)))
	for _, bad := range reply.Rejected {
		r.opt.Log.Error("the cloud refused a usage row", "attempt", bad.AttemptID, "field", bad.Field, "problem", bad.Problem)
	}
	return nil
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
