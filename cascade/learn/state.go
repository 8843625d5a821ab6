package learn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/measure"
	"github.com/weirhq/weir/cascade/verifier"
)

// ErrState says that a snapshot is damaged or of another version.
var ErrState = errors.New("learned state cannot be read")

const stateVersion = 2

type state struct {
	Version     int               `json:"version"`
	Fingerprint string            `json:"fingerprint"`
	Features    []cascade.Feature `json:"features"`
	Base        []float64         `json:"base"`  // bias first
	Prior       []float64         `json:"prior"` // the same
	Cloud       Quality           `json:"cloud"`
	Cells       []cellState       `json:"cells"`
}

type cellState struct {
	Name   string       `json:"name"`
	Cloud  Quality      `json:"cloud"`
	Labels [][]float64  `json:"labels"` // y, w, then the features; oldest first
	Used   uint64       `json:"used"`
	Gains  [][3]float64 `json:"gains"` // prediction, weight, helps
	Edge   Quality      `json:"edge"`
	Helps  Quality      `json:"helps"`
	Alarms uint64       `json:"alarms"`

	// Older snapshots have none of these.
	Scored     string                     `json:"scored,omitempty"` // of each label: a of the answer's span, else of all tokens
	Drift      []control.PageHinkleyState `json:"drift,omitempty"`  // of signal, residual, disagreement
	AlarmLeft  int                        `json:"alarm_left,omitempty"`
	Shrunk     bool                       `json:"shrunk,omitempty"`     // drifted and not settled
	Confidence [][3]float64               `json:"confidence,omitempty"` // weight, p, y of each bin
	Votes      json.RawMessage            `json:"votes,omitempty"`      // table of labels with votes
}

// scored are the letters of cellState.Scored.
var scored = map[bool]string{true: "a", false: "-"}

// Snapshot writes the table as JSON. A restored table decides as this one does
// after its next refit of each cell.
func (t *Table) Snapshot(w io.Writer) error {
	s := state{Version: stateVersion, Fingerprint: t.Fingerprint, Features: t.Features, Cloud: t.cloud,
		Base: t.base.Values(), Prior: t.prior.Values()}
	for name, e := range t.cells {
		c := cellState{Name: name, Cloud: e.cloud, Used: e.used, Edge: e.edge, Helps: e.helps, Alarms: e.alarms,
			AlarmLeft: e.shadow.left, Shrunk: e.tauFactor > 1}
		for _, d := range e.drift.all() {
			c.Drift = append(c.Drift, d.State())
		}
		for _, b := range e.error.bins {
			c.Confidence = append(c.Confidence, [3]float64{b.Weight, b.P, b.Y})
		}
		for i := range e.labels {
			l := &e.labels[(e.Cell.next+i)%len(e.labels)]
			c.Labels = append(c.Labels, append([]float64{l.y, l.w}, l.x...))
			c.Scored += scored[l.answer]
		}
		for i := range e.sample {
			b := e.sample[(e.next+i)%len(e.sample)]
			g := [3]float64{b.p, b.weight, 0}
			if b.helps {
				g[2] = 1
			}
			c.Gains = append(c.Gains, g)
		}
		if e.voted != nil {
			c.Votes, _ = json.Marshal(e.voted) // a table of finite numbers marshals
		}
		s.Cells = append(s.Cells, c)
	}
	if err := json.NewEncoder(w).Encode(s); err != nil {
		return fmt.Errorf("write learned state: %w", err)
	}
	return nil
}

// Restore reads what Snapshot wrote into a new table. Replace comes next where
// the model is another one now.
func Restore(r io.Reader, opt Options) (*Table, error) {
	var s state
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	d := len(s.Features)
	if s.Version != stateVersion || d == 0 || d > 8 || len(s.Prior) != d+1 || len(s.Cells) > MaxCells {
		return nil, fmt.Errorf("%w: version %d with %d features and %d cells", ErrState, s.Version, d, len(s.Cells))
	}
	for _, f := range s.Features {
		if !f.Valid() {
			return nil, fmt.Errorf("%w: unknown feature %q", ErrState, f)
		}
	}
	t := NewTable(opt, s.Fingerprint, s.Features...)
	t.cloud = s.Cloud
	if len(s.Base) == d+1 { // older snapshots have none
		t.base = cascade.Logistic{Bias: s.Base[0], W: s.Base[1:]}
	}
	t.SetPrior(cascade.Logistic{Bias: s.Prior[0], W: s.Prior[1:]})
	for _, c := range s.Cells {
		if err := t.restoreCell(c); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *Table) restoreCell(c cellState) error {
	e := t.newEntry()
	e.cloud, e.edge, e.helps, e.used, e.alarms = c.Cloud, c.Edge, c.Helps, c.Used, c.Alarms
	for i, l := range c.Labels {
		if len(l) != len(t.Features)+2 || !(l[1] > 0) {
			return fmt.Errorf("%w: cell %q has a label of %d values", ErrState, c.Name, len(l))
		}
		if len(e.labels) == t.opt.Capacity {
			break
		}
		e.seq++
		e.labels = append(e.labels, label{y: l[0], w: l[1], x: l[2:], seq: e.seq, answer: i < len(c.Scored) && c.Scored[i:i+1] == scored[true]})
	}
	for _, g := range c.Gains {
		e.keep(benefit{p: g[0], weight: g[1], helps: g[2] > 0})
	}
	e.shadow.left = min(max(0, c.AlarmLeft), e.shadow.AlarmFor)
	if detectors := e.drift.all(); len(c.Drift) == len(detectors) {
		for i, d := range detectors {
			d.Resume(c.Drift[i])
		}
	}
	for i, b := range c.Confidence[:min(len(c.Confidence), len(e.error.bins))] {
		e.error.bins[i] = measure.Bin{Weight: b[0], P: b[1], Y: b[2]}
	}
	if c.Shrunk {
		e.tauFactor = driftedTau
	}
	var voted verifier.Table
	if len(c.Votes) > 0 && voted.UnmarshalJSON(c.Votes) == nil { // votes on another question are collected anew
		e.voted = &voted
	}
	e.Refit()
	e.graded = e.grade()
	t.cells[c.Name] = e
	t.tick = max(t.tick, c.Used)
	return nil
}
