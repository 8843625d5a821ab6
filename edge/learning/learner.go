// Package learning lets an edge node learn from the requests that both tiers
// have answered: it compares the answers, keeps the calibration of each SLO class
// (package cascade/learn) with its snapshot and log on disk, asks the cloud in the
// background about a few kept answers, and exchanges what was learned with the
// tenant's other nodes. Requests read immutable views and wait for nothing.
package learning

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/cascade/learn"
)

// Rules are the controllers that hear of labels.
type Rules interface {
	// Label tells of the late label of a kept answer.
	Label(cell string, loss, propensity float64)
	// Drifted tells of a drift alarm and of its end.
	Drifted(cell string, alarmed bool)
	// Bound gives the labelled answers of all cells.
	Bound(cells map[string][]control.RiskItem)
}

// Log takes records for the decision log without waiting.
type Log interface{ Log(journal.Record) bool }

// Options configure a Learner.
type Options struct {
	Dir         string               // of the decision log; the snapshot lies beside it
	Calibration *cascade.Calibration // what cells start from; nil: the raw signal
	Rules       Rules
	Shadow      Limits
	Idle        func() bool // no request is on its way to the cloud
	Logger      *slog.Logger
	Now         func() time.Time // time.Now
}

// Intervals of the learner.
const (
	snapshotRecords = 1000
	snapshotEvery   = time.Minute
	boundEvery      = 50 // labels between risk bounds
)

// Learner is safe for concurrent use.
type Learner struct {
	opt     Options
	log     Log
	shadows shadows
	polls   polls
	views   atomic.Pointer[views]
	counts  counts

	mu     sync.Mutex // the rest is the table's owner's
	table  *learn.Table
	labels uint64    // learned since the start
	since  int       // records since the last snapshot
	saved  time.Time // of the last snapshot
}

// views is what requests read.
type views struct {
	fingerprint string
	cells       map[string]*learn.View
	unseen      *learn.View // of a cell without traffic yet
}

// Open reads the snapshot and the tail of the log in the folder. A damaged
// snapshot is logged and the log is all there is. Attach comes next.
func Open(opt Options) (*Learner, error) {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	l := &Learner{opt: opt, saved: opt.Now()}
	l.shadows.open(opt.Shadow, opt.Now())
	data, seq, err := journal.ReadSnapshot(opt.Dir)
	if err == nil && data != nil {
		err = l.restore(data)
	}
	if err != nil {
		opt.Logger.Warn("learned state is not usable, it is learned again from the decision log", "err", err)
		seq = 0
	}
	if l.table == nil {
		l.table = newTable(opt.Calibration)
	}
	if err := journal.Replay(opt.Dir, seq, func(r journal.Record) error { l.learn(&r); return nil }); err != nil {
		return nil, err
	}
	l.publishAll()
	return l, nil
}

// Attach names the log to which labels go. It is called before any request.
func (l *Learner) Attach(log Log) { l.log = log }

// options hold cells to a shipped calibration by its labels.
func options(c *cascade.Calibration) learn.Options {
	if c == nil {
		return learn.DefaultOptions()
	}
	return learn.DefaultOptions().Shipped(c.Samples)
}

func newTable(c *cascade.Calibration) *learn.Table {
	if c == nil {
		return learn.NewTable(options(nil), "", cascade.FeatureProduct)
	}
	features := make([]cascade.Feature, len(c.Terms))
	for i, t := range c.Terms {
		features[i] = t.Feature
	}
	t := learn.NewTable(options(c), c.Fingerprint, features...)
	t.Ship(c)
	return t
}

// state is the snapshot.
type state struct {
	Day   int64           `json:"day"` // Unix day of Spent
	Spent int64           `json:"spent"`
	Table json.RawMessage `json:"table"`
}

func (l *Learner) restore(data []byte) error {
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%w: %w", learn.ErrState, err)
	}
	t, err := learn.Restore(bytes.NewReader(s.Table), options(l.opt.Calibration))
	if err != nil {
		return err
	}
	if cal := l.opt.Calibration; cal != nil && cal.Bind(t.Fingerprint) == nil && !t.Ship(cal) {
		return fmt.Errorf("%w: the calibration has other features now", learn.ErrState)
	}
	l.table = t
	l.shadows.restore(s.Day, s.Spent)
	return nil
}

// Apply learns from a record that the log holds. The log's own goroutine calls
// it, so that what was learned is never ahead of the log.
func (l *Learner) Apply(r journal.Record) {
	l.mu.Lock()
	change := l.learn(&r)
	publish := change.drift != "" || r.Kind == journal.KindLabel || l.View(r.Cell).Alarmed || l.views.Load().fingerprint != l.table.Fingerprint
	if publish {
		l.publish(r.Cell)
	}
	var items map[string][]control.RiskItem
	if change.label && l.labels%boundEvery == 0 {
		items = l.riskItems()
	}
	l.since++
	snapshot := l.since >= snapshotRecords || l.opt.Now().Sub(l.saved) >= snapshotEvery
	l.mu.Unlock()

	l.tell(&r, change, items)
	if snapshot {
		l.Save(r.Seq)
	}
}

// change is what a record did to the table.
type change struct {
	label bool
	drift learn.Drift
	calm  bool // an alarm has ended
}

// learn updates the table. The caller holds the lock, or is alone.
func (l *Learner) learn(r *journal.Record) (c change) {
	l.shadows.charge(r)
	if r.Kind == journal.KindDecision && r.Model != "" && r.Model != l.table.Fingerprint {
		l.table.Replace(r.Model)
		if cal := l.opt.Calibration; cal != nil && cal.Bind(r.Model) == nil {
			l.table.Ship(cal)
		}
	}
	switch {
	case r.Kind == journal.KindDecision && r.Judged:
		was := l.table.Alarmed(r.Cell)
		c.drift = l.table.Pass(r.Cell, r.Features)
		c.calm = was && !l.table.Alarmed(r.Cell)
	case r.Kind == journal.KindLabel && r.LabelKind == journal.LabelAgreement && r.Edge != nil && r.Model == l.table.Fingerprint:
		o := learn.Outcome{Cell: r.Cell, X: r.Features, Edge: *r.Edge, Propensity: r.Propensity, Answer: r.Scored == cascade.ScoredAnswer, Votes: r.Votes}
		if r.Cloud != nil {
			o.Cloud, o.CloudKnown = *r.Cloud, true
		}
		c.label, c.drift = true, l.table.Observe(o)
		l.labels++
	}
	return c
}

// tell passes on what a record has changed. No lock is held.
func (l *Learner) tell(r *journal.Record, c change, items map[string][]control.RiskItem) {
	if c.label {
		l.counts.label(r.Shadow)
		if r.Shadow && r.Cloud != nil {
			l.opt.Rules.Label(r.Cell, max(0, *r.Cloud-*r.Edge), r.Propensity)
		}
	}
	if items != nil {
		l.opt.Rules.Bound(items)
	}
	switch {
	case c.drift != "":
		l.opt.Logger.Warn("drift: more answers are labelled, calibration leans on its prior", "class", r.Cell, "stream", string(c.drift))
		l.opt.Rules.Drifted(r.Cell, true)
	case c.calm:
		l.opt.Rules.Drifted(r.Cell, false)
	}
}

func (l *Learner) riskItems() map[string][]control.RiskItem {
	all := map[string][]control.RiskItem{}
	for cell := range l.table.Views() {
		all[cell] = l.table.RiskItems(cell)
	}
	return all
}

// Save writes the snapshot that covers the log up to seq.
func (l *Learner) Save(seq uint64) {
	err := journal.WriteSnapshot(l.opt.Dir, seq, func(w io.Writer) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.since, l.saved = 0, l.opt.Now()
		return l.encode(w)
	})
	if err != nil {
		l.opt.Logger.Error("learned state was not saved", "err", err)
	}
}

func (l *Learner) encode(w io.Writer) error {
	var s state
	s.Day, s.Spent = l.shadows.covered()
	var table bytes.Buffer
	if err := l.table.Snapshot(&table); err != nil {
		return err
	}
	s.Table = table.Bytes()
	return json.NewEncoder(w).Encode(s)
}

// publish shows requests the new view of one cell.
func (l *Learner) publish(cell string) {
	old := l.views.Load()
	if old.fingerprint != l.table.Fingerprint {
		l.publishAll()
		return
	}
	next := &views{fingerprint: old.fingerprint, cells: maps.Clone(old.cells), unseen: old.unseen}
	v := l.table.View(cell)
	next.cells[cell] = &v
	l.views.Store(next)
}

func (l *Learner) publishAll() {
	unseen := l.table.View("")
	all := &views{fingerprint: l.table.Fingerprint, cells: map[string]*learn.View{}, unseen: &unseen}
	for name, v := range l.table.Views() {
		all.cells[name] = &v
	}
	l.views.Store(all)
}

// View is what is known of a cell now. It is not to be changed.
func (l *Learner) View(cell string) *learn.View {
	v := l.views.Load()
	if known, ok := v.cells[cell]; ok {
		return known
	}
	return v.unseen
}
