package edge

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weirhq/weir/cascade/journal"
)

// Bounds of the decision log: two files of this size hold some 100,000
// decisions, which are read through in a fraction of a second.
const (
	decisionBytes = 16 << 20
	decisionQueue = 1024
)

// decisionLog is the node's log of decisions. Requests hand their record over
// and do not wait for the disk.
type decisionLog struct {
	*journal.Async
	journal *journal.Journal
	dir     string
	log     *slog.Logger
	reading chan struct{} // one token: one search of the log at a time
}

// openDecisions opens the log in the folder "decisions" of the data directory.
func openDecisions(dataDir string, log *slog.Logger) (*decisionLog, error) {
	dir := filepath.Join(dataDir, "decisions")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("decision log: %w", err)
	}
	j, err := journal.Open(dir, journal.Options{MaxBytes: decisionBytes})
	if err != nil {
		return nil, err
	}
	return &decisionLog{Async: journal.NewAsync(j, decisionQueue, log, nil), journal: j, dir: dir, log: log, reading: make(chan struct{}, 1)}, nil
}

// Find searches the log on disk, for requests that are no longer in memory.
func (d *decisionLog) Find(ctx context.Context, request string) (journal.Record, *journal.Record, bool, error) {
	select {
	case d.reading <- struct{}{}:
		defer func() { <-d.reading }()
	case <-ctx.Done():
		return journal.Record{}, nil, false, ctx.Err()
	}
	return journal.Find(d.dir, request)
}

// close writes what is queued.
func (d *decisionLog) close() {
	d.Async.Close()
	if err := d.journal.Close(); err != nil {
		d.log.Warn("decision log was not closed well", "err", err)
	}
}
