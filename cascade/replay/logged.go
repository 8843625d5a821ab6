package replay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/weirhq/weir/cascade/journal"
)

// Logged is what a node's own log says: of every decision the prediction, but
// only of some the outcomes of both tiers, each with the propensity with which
// it was seen.
type Logged struct {
	Decisions []LoggedDecision
	// Kinds counts the labels that the decisions have by kind.
	Kinds map[string]int
}

// LoggedDecision is one decision with its labels, if they were seen.
type LoggedDecision struct {
	PEdge      float64
	Escalated  bool
	Labelled   bool
	Edge       float64
	Cloud      float64
	Propensity float64

	kind string // of the label
}

// hear replaces what a label says of the edge's answer by a user's word on it.
func (d *LoggedDecision) hear(r *journal.Record) {
	if d.Labelled && r.Edge != nil {
		d.Edge, d.kind = *r.Edge, journal.LabelFeedback
	}
}

// OpenLog reads the decision log in a folder and joins labels by request.
// Decisions without a confidence are left out. A user's word on a kept answer
// replaces what was inferred of it where both outcomes are known; alone it is not
// used, because nobody knows with which probability it would have come.
func OpenLog(dir string) (*Logged, error) {
	at, said := map[string]int{}, map[string]journal.Record{}
	l := &Logged{Kinds: map[string]int{}}
	err := journal.Replay(dir, 0, func(r journal.Record) error {
		i, seen := at[r.Request]
		if r.Kind == journal.KindDecision {
			if r.Conf == nil || seen {
				return nil
			}
			i = len(l.Decisions)
			at[r.Request] = i
			l.Decisions = append(l.Decisions, LoggedDecision{PEdge: *r.Conf, Escalated: r.Tier == "cloud", Propensity: r.Propensity})
		} else if !seen {
			return nil
		}
		d := &l.Decisions[i]
		switch {
		case r.LabelKind == journal.LabelFeedback:
			said[r.Request] = r
		case r.Edge != nil && r.Cloud != nil && d.Propensity > 0:
			d.Labelled, d.Edge, d.Cloud, d.kind = true, *r.Edge, *r.Cloud, r.LabelKind
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for request, r := range said {
		l.Decisions[at[request]].hear(&r)
	}
	for i := range l.Decisions {
		if d := &l.Decisions[i]; d.Labelled {
			l.Kinds[d.kind]++
		}
	}
	if len(l.Decisions) == 0 {
		return nil, fmt.Errorf("%s: no decisions with a confidence in the log", dir)
	}
	return l, nil
}

// Estimate is the value of the policy "escalate below Threshold" from logged
// decisions.
type Estimate struct {
	Threshold float64 `json:"threshold"`
	Rate      float64 `json:"rate"` // share it would escalate
	IPS       number  `json:"ips"`
	SNIPS     number  `json:"snips"`
	DR        number  `json:"dr"`
	SE        number  `json:"se"` // standard error of DR
}

// maxImportance caps 1/propensity.
const maxImportance = 20

// Estimate estimates the accuracy at a threshold: by inverse propensity (IPS),
// self-normalised (SNIPS), and doubly robust (DR), which starts from the
// model's own predictions and corrects them by the labels.
func (l *Logged) Estimate(threshold float64) Estimate {
	cloud := l.cloudMean()
	n := float64(len(l.Decisions))
	e := Estimate{Threshold: threshold}
	ips, weight, dr, square := 0.0, 0.0, 0.0, 0.0
	for _, d := range l.Decisions {
		escalate := d.PEdge < threshold
		model, reward := d.PEdge, d.Edge
		if escalate {
			e.Rate += 1 / n
			model, reward = cloud, d.Cloud
		}
		v := model
		if d.Labelled {
			w := math.Min(maxImportance, 1/d.Propensity)
			ips += w * reward
			weight += w
			v += w * (reward - model)
		}
		dr += v
		square += v * v
	}
	e.IPS, e.SNIPS, e.DR = number(ips/n), number(ips/weight), number(dr/n)
	e.SE = number(math.Sqrt(math.Max(0, square/n-(dr/n)*(dr/n)) / n))
	return e
}

func (l *Logged) cloudMean() float64 {
	sum, weight := 0.0, 0.0
	for _, d := range l.Decisions {
		if d.Labelled {
			w := math.Min(maxImportance, 1/d.Propensity)
			sum += w * d.Cloud
			weight += w
		}
	}
	return sum / weight
}

// Labelled is the number of decisions with labels.
func (l *Logged) Labelled() int {
	n := 0
	for _, d := range l.Decisions {
		if d.Labelled {
			n++
		}
	}
	return n
}

// Write writes estimates for thresholds from 0 to 1 in steps of .05.
func (l *Logged) Write(w io.Writer, asJSON bool) error {
	var all []Estimate
	for i := range 21 {
		all = append(all, l.Estimate(float64(i)/20))
	}
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", " ")
		return enc.Encode(struct {
			Decisions int            `json:"decisions"`
			Labelled  int            `json:"labelled"`
			Kinds     map[string]int `json:"label_kinds"`
			Estimates []Estimate     `json:"estimates"`
		}{len(l.Decisions), l.Labelled(), l.Kinds, all})
	}
	fmt.Fprintf(w, "%d decisions, %d labelled%s\nthreshold  rate    SNIPS   DR      SE\n", len(l.Decisions), l.Labelled(), l.kinds())
	for _, e := range all {
		if _, err := fmt.Fprintf(w, "%.2f       %.4f  %s  %s  %s\n", e.Threshold, e.Rate, show(float64(e.SNIPS)), show(float64(e.DR)), show(float64(e.SE))); err != nil {
			return err
		}
	}
	return nil
}

// kinds tells where the labels come from.
func (l *Logged) kinds() string {
	out := ""
	for _, k := range slices.Sorted(maps.Keys(l.Kinds)) {
		out += fmt.Sprintf(", %d by %s", l.Kinds[k], cmp.Or(k, "an unnamed kind"))
	}
	return out
}
