package replay

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/cascade"
)

// Kinds of faults.
const (
	faultCloudDown  = "cloud-down"
	faultBudget     = "budget"      // nothing is left to spend
	faultRTT        = "rtt"         // the cloud is MS farther away
	faultTaskSwitch = "task-switch" // rows of another task
	faultEdgeSwap   = "edge-swap"   // another edge model answers
)

// Fault is something that goes wrong for some rows of a stream.
type Fault struct {
	Kind        string
	From, Count int     // rows, the first is 0
	MS          float64 // of rtt
}

// faultUsage is how faults are written.
const faultUsage = "cloud-down=FROM:COUNT, budget=FROM:COUNT, task-switch=FROM:COUNT, edge-swap=FROM:COUNT or rtt=FROM:COUNT:MS"

// ParseFault reads KIND=FROM:COUNT, and rtt=FROM:COUNT:MS.
func ParseFault(s string) (Fault, error) {
	kind, at, _ := strings.Cut(s, "=")
	if !slices.Contains([]string{faultCloudDown, faultBudget, faultRTT, faultTaskSwitch, faultEdgeSwap}, kind) {
		return Fault{}, fmt.Errorf("fault %q: unknown kind: use %s", s, faultUsage)
	}
	numbers := strings.Split(at, ":")
	want := 2
	if kind == faultRTT {
		want = 3
	}
	if len(numbers) != want {
		return Fault{}, fmt.Errorf("fault %q: want %s", s, faultUsage)
	}
	f := Fault{Kind: kind}
	var err1, err2, err3 error
	f.From, err1 = strconv.Atoi(numbers[0])
	f.Count, err2 = strconv.Atoi(numbers[1])
	if kind == faultRTT {
		f.MS, err3 = strconv.ParseFloat(numbers[2], 64)
	}
	if err1 != nil || err2 != nil || err3 != nil || f.From < 0 || f.Count < 0 || !(f.MS >= 0 && f.MS <= maxDeadlineMS) {
		return Fault{}, fmt.Errorf("fault %q: want %s", s, faultUsage)
	}
	return f, nil
}

// covers reports whether the fault holds at row k.
func (f Fault) covers(k int) bool { return k >= f.From && k-f.From < f.Count }

// changesEdge reports whether the edge's answers are others.
func (f Fault) changesEdge() bool { return f.Kind == faultTaskSwitch || f.Kind == faultEdgeSwap }

// nodeAt is the node as it is at row k.
func nodeAt(faults []Fault, k int) cascade.Node {
	n := cascade.Node{EdgeReady: true, Link: cascade.LinkUp}
	for _, f := range faults {
		if !f.covers(k) {
			continue
		}
		switch f.Kind {
		case faultCloudDown:
			n.Link = cascade.LinkDown
		case faultBudget:
			n.Budgeted = true
		case faultRTT:
			n.RTT += time.Duration(f.MS * float64(time.Millisecond))
		}
	}
	return n
}

// played returns the data as the faults leave it; d stays as it is. Rows are
// counted among those of the stream. It is ErrNotApplicable when the data lacks
// what a fault needs.
func (d *Data) played(faults []Fault) (*Data, error) {
	out := *d
	out.Records, out.Notes = slices.Clone(d.Records), slices.Clone(d.Notes)
	stream := d.stream()
	for _, f := range faults {
		var err error
		switch f.Kind {
		case faultRTT:
			err = out.farther(stream, f)
		case faultTaskSwitch:
			err = out.switchTask(stream, f)
		case faultEdgeSwap:
			err = out.swapEdge(stream, f)
		}
		if err != nil {
			return nil, fmt.Errorf("fault %s: %w", f.Kind, err)
		}
	}
	return &out, nil
}

// stream lists the records that are decided on: the test rows, or all.
func (d *Data) stream() []int {
	split := d.HasSplit()
	var out []int
	for i := range d.Records {
		if !split || d.Records[i].Split == SplitTest {
			out = append(out, i)
		}
	}
	return out
}

// farther adds to the cloud's time.
func (d *Data) farther(stream []int, f Fault) error {
	known := false
	for k, i := range stream {
		r := &d.Records[i]
		if known = known || price(r.CloudMS); f.covers(k) {
			r.CloudMS += f.MS
			r.CloudTTFT += f.MS
		}
	}
	if !known {
		return lacks("cloud-ms")
	}
	return nil
}

// switchTask moves rows of the task that comes last to where the fault is; the
// rest of them follow at the end.
func (d *Data) switchTask(stream []int, f Fault) error {
	var tasks []string
	for _, i := range stream {
		if t := d.Records[i].Cell; !slices.Contains(tasks, t) {
			tasks = append(tasks, t)
		}
	}
	if len(tasks) < 2 {
		return fmt.Errorf("%w: all rows have one task (--task names its column)", ErrNotApplicable)
	}
	other := tasks[len(tasks)-1]
	var rest, moved []Record
	for _, i := range stream {
		if r := d.Records[i]; r.Cell == other {
			moved = append(moved, r)
		} else {
			rest = append(rest, r)
		}
	}
	if f.From >= len(rest) {
		return fmt.Errorf("%w: there are %d rows of other tasks than %s, none at %d", ErrNotApplicable, len(rest), other, f.From)
	}
	count := min(f.Count, len(moved))
	order := slices.Concat(rest[:f.From], moved[:count], rest[f.From:], moved[count:])
	for k, i := range stream {
		d.Records[i] = order[k]
	}
	d.Notes = append(d.Notes, fmt.Sprintf("task-switch: %d row(s) of %s at %d", count, other, f.From))
	return nil
}

// swapEdge gives rows the score and the confidence of the second edge model.
// Its other signals, cost and time are not known.
func (d *Data) swapEdge(stream []int, f Fault) error {
	n := 0
	for k, i := range stream {
		r := &d.Records[i]
		if !f.covers(k) || math.IsNaN(r.SwapEdge) {
			continue
		}
		n++
		r.Edge, r.Votes, r.EdgeCost, r.EdgeMS = r.SwapEdge, math.NaN(), math.NaN(), math.NaN()
		for s := range r.Signals {
			r.Signals[s] = math.NaN()
		}
		r.Signals[SignalConfidence] = r.SwapConfidence
	}
	if n == 0 && f.Count > 0 {
		return fmt.Errorf("%w: no score of a second edge model there (--swap-edge and --swap-confidence name its columns)", ErrNotApplicable)
	}
	d.Notes = append(d.Notes, fmt.Sprintf("edge-swap: %d row(s) are the second edge model's", n))
	return nil
}
