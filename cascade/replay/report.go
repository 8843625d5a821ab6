package replay

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/learn"
)

// number is a JSON number, or null for what is undefined.
type number float64

// MarshalJSON writes six digits after the point, where a float64 has room for them.
func (n number) MarshalJSON() ([]byte, error) {
	v := float64(n)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return []byte("null"), nil
	}
	if rounded := math.Round(v*1e6) / 1e6; !math.IsInf(rounded, 0) {
		v = rounded
	}
	return json.Marshal(v)
}

// jsonPolicy has exactly the members of the evaluation format.
type jsonPolicy struct {
	APGR    number `json:"apgr"`
	AUC     number `json:"auc"`
	CPT50   number `json:"cpt50"`
	CPT80   number `json:"cpt80"`
	CPT95   number `json:"cpt95"`
	EdgeOK  number `json:"auroc_edge_ok"`
	Benefit number `json:"auroc_benefit"`
	ECE     number `json:"ece"`
	Rate    number `json:"rate"`
}

// jsonMore holds what goes beyond the format, beside it.
type jsonMore struct {
	APGR95       [2]number   `json:"apgr_95"`
	DiffFirst95  *[2]number  `json:"apgr_minus_first_95,omitempty"`
	Brier        number      `json:"brier"`
	LogLoss      number      `json:"log_loss"`
	CQAUC        number      `json:"cq_auc"`
	CQAUCFree    number      `json:"cq_auc_free_edge"`
	AIQ          number      `json:"aiq"`
	AIQFree      number      `json:"aiq_free_edge"`
	Redrawn      number      `json:"redraw_violations"`
	RedrawnRate  number      `json:"redraw_rate"`
	Best         number      `json:"best"`
	BestRate     number      `json:"best_rate"`
	Viability    learn.Grade `json:"viability"`
	RealisedRisk number      `json:"risk"`
	Accuracy     number      `json:"accuracy"`
	// WorstWindow, Feasible and Reasons are of the whole stream.
	WorstWindow number                 `json:"worst_window"`
	Feasible    bool                   `json:"feasible"`
	Reasons     map[cascade.Reason]int `json:"reasons"`
	jsonOutcome
}

type jsonSet struct {
	Policies  map[string]jsonPolicy `json:"policies"`
	N         int                   `json:"n,omitempty"`
	Edge      number                `json:"edge"`
	Cloud     number                `json:"cloud"`
	Viability learn.Grade           `json:"viability,omitempty"`
	Baselines map[string]number     `json:"baselines,omitempty"`
	More      map[string]jsonMore   `json:"more,omitempty"`
	Latency   map[string]number     `json:"latency_ms,omitempty"`
	Drift     map[string]number     `json:"drift,omitempty"`
}

// WriteJSON writes {"sets":{SET:{"policies":{NAME:{...}}}}}; undefined numbers
// are null.
func (r *Result) WriteJSON(w io.Writer) error {
	out := struct {
		Sets    map[string]jsonSet `json:"sets"`
		Columns []string           `json:"columns,omitempty"`
		Notes   []string           `json:"notes,omitempty"`
		Skipped []string           `json:"skipped,omitempty"`
		Lacking []string           `json:"lacking,omitempty"`
	}{map[string]jsonSet{}, r.Columns, r.Notes, r.Skipped, r.Lacking}
	for i := range r.Sets {
		out.Sets[r.Sets[i].Name] = r.Sets[i].json()
	}
	nan := number(math.NaN())
	for _, v := range r.Summary {
		out.Sets[v.Set] = jsonSet{Viability: v.Grade, Edge: nan, Cloud: nan, Policies: map[string]jsonPolicy{
			"published": {APGR: nan, AUC: nan, CPT50: nan, CPT80: nan, CPT95: nan, ECE: nan, Rate: nan,
				EdgeOK: number(v.EdgeOK), Benefit: number(v.Benefit)}}}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(out)
}

func (s *SetResult) json() jsonSet {
	b := s.Baselines
	out := jsonSet{N: s.N, Drift: s.Drift.json(), Edge: number(s.Edge), Cloud: number(s.Cloud),
		Policies: map[string]jsonPolicy{}, More: map[string]jsonMore{},
		Baselines: map[string]number{
			"always_edge": number(b.AlwaysEdge), "always_cloud": number(b.AlwaysCloud),
			"random_apgr": number(b.RandomAPGR), "random_at_rate": number(b.RandomAtRate),
			"task_apgr": number(b.TaskAPGR), "static_at_rate": number(b.StaticAtRate),
			"oracle_apgr": number(b.OracleAPGR), "oracle_at_rate": number(b.OracleAtRate),
			"dataset_oracle": number(b.DatasetOracle)}}
	if !math.IsNaN(s.Latency.Relative) {
		out.Latency = map[string]number{"edge": number(s.Latency.EdgeMean), "cloud": number(s.Latency.CloudMean),
			"cascade": number(s.Latency.CascadeMean), "relative": number(s.Latency.Relative),
			"edge_p50": number(s.Latency.Edge[0]), "edge_p95": number(s.Latency.Edge[1]),
			"cloud_p50": number(s.Latency.Cloud[0]), "cloud_p95": number(s.Latency.Cloud[1])}
	}
	for name, m := range s.Policies {
		out.Policies[name] = jsonPolicy{number(m.APGR), number(m.AUC), number(m.CPT50), number(m.CPT80), number(m.CPT95),
			number(m.AUROCEdge), number(m.AUROCHelps), number(m.ECE), number(m.Rate)}
		more := jsonMore{APGR95: [2]number{number(m.Low), number(m.High)}, Brier: number(m.Brier), LogLoss: number(m.LogLoss),
			CQAUC: number(m.Dollars.CQAUC), CQAUCFree: number(m.FreeEdge.CQAUC), AIQ: number(m.Dollars.AIQ), AIQFree: number(m.FreeEdge.AIQ),
			Redrawn: number(m.Redraws.Violations), RedrawnRate: number(m.Redraws.Escalated),
			Best: number(m.BestAccuracy), BestRate: number(m.BestRate),
			Viability: m.Grade, WorstWindow: number(m.Stream.WorstWindow), RealisedRisk: number(m.Risk),
			Accuracy: number(m.Accuracy), Feasible: m.Stream.Feasible, Reasons: m.Stream.Reasons, jsonOutcome: m.Outcome.json()}
		if !math.IsNaN(m.DiffLow) {
			more.DiffFirst95 = &[2]number{number(m.DiffLow), number(m.DiffHigh)}
		}
		out.More[name] = more
	}
	return out
}

// WriteText writes a table for people. A difference is called a win or a loss
// only where its 95 % interval excludes zero.
func (r *Result) WriteText(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, v := range r.Summary {
		fmt.Fprintf(tw, "%s\tedge right %.3f\tescalation helps %.3f\tlower %.3f\t%s\n", v.Set, v.EdgeOK, v.Benefit, v.Lower, v.Grade)
	}
	for i := range r.Sets {
		r.Sets[i].text(tw, r.Options)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "left out: %s\n", s)
	}
	for _, s := range r.Lacking {
		fmt.Fprintf(w, "not given: %s\n", s)
	}
	for _, s := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", s)
	}
	if len(r.Columns) > 0 {
		fmt.Fprintf(w, "columns: %s\n", strings.Join(r.Columns, ", "))
	}
	return nil
}

func (s *SetResult) text(w io.Writer, o Options) {
	b := s.Baselines
	fmt.Fprintf(w, "%s\tn %d\tedge %.4f\tcloud %.4f\trandom %.4f\tstatic %s\toracle %.4f\tat %.0f %%\n",
		s.Name, s.N, s.Edge, s.Cloud, b.RandomAtRate, show(b.StaticAtRate), b.OracleAtRate, 100*o.Rate)
	fmt.Fprintf(w, "  policy\tAPGR\t95 %%\tCPT50\tCPT80\tCPT95\tedge right\thelps\tECE\trate\tviability\tagainst %s\n", first(o.Policies))
	for _, name := range o.Policies {
		m, ok := s.Policies[name]
		if !ok {
			continue
		}
		fmt.Fprintf(w, "  %s\t%s\t%s..%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, show(m.APGR), show(m.Low), show(m.High),
			show(m.CPT50), show(m.CPT80), show(m.CPT95), show(m.AUROCEdge), show(m.AUROCHelps), show(m.ECE), show(m.Rate), m.Grade, claim(m))
	}
	s.outcomeText(w, o)
	fmt.Fprintf(w, "  task identity\t%s\n  oracle\t%s\n  better tier per task\taccuracy %s\n", show(b.TaskAPGR), show(b.OracleAPGR), show(b.DatasetOracle))
	if s.Drift.json() != nil {
		fmt.Fprintf(w, "  drift\t%v\n", s.Drift)
	}
	if !math.IsNaN(s.Latency.Relative) {
		fmt.Fprintf(w, "  latency\t%.0f ms\t%.2f of the cloud's\n", s.Latency.CascadeMean, s.Latency.Relative)
	}
}

func claim(m Metrics) string {
	switch {
	case math.IsNaN(m.DiffLow):
		return ""
	case m.DiffLow > 0:
		return fmt.Sprintf("better by %.3f to %.3f", m.DiffLow, m.DiffHigh)
	case m.DiffHigh < 0:
		return fmt.Sprintf("worse by %.3f to %.3f", -m.DiffHigh, -m.DiffLow)
	}
	return fmt.Sprintf("no difference shown (%+.3f to %+.3f)", m.DiffLow, m.DiffHigh)
}

func first(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

func show(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "-"
	}
	return fmt.Sprintf("%.4f", v)
}
