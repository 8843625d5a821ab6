package edge

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/edge/learning"
)

// Bounds of the decision log: two files of this size hold some 100,000
// decisions, which are read through in a second when the node starts.
const (
	decisionBytes = 16 << 20
	decisionQueue = 1024
)

// decisionLog is the node's log of decisions, and what was learned from them.
// Requests hand their record over and do not wait for the disk.
type decisionLog struct {
	*journal.Async
	learner *learning.Learner
	journal *journal.Journal
	dir     string
	log     *slog.Logger
}

// openDecisions opens the log in a folder and learns what it holds.
func openDecisions(opt learning.Options) (*decisionLog, error) {
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("decision log: %w", err)
	}
	learner, err := learning.Open(opt)
	if err != nil {
		return nil, err
	}
	j, err := journal.Open(opt.Dir, journal.Options{MaxBytes: decisionBytes})
	if err != nil {
		return nil, err
	}
	d := &decisionLog{learner: learner, journal: j, dir: opt.Dir, log: opt.Logger}
	d.Async = journal.NewAsync(j, decisionQueue, opt.Logger, learner.Apply)
	learner.Attach(d.Async)
	return d, nil
}

// Find reads what the log holds of a request.
func (d *decisionLog) Find(request string) (journal.Found, bool, error) {
	return d.journal.Find(request)
}

// close writes what is queued and what was learned.
func (d *decisionLog) close() {
	d.Async.Close()
	d.learner.Save(d.journal.Seq())
	if err := d.journal.Close(); err != nil {
		d.log.Warn("decision log was not closed well", "err", err)
	}
}
