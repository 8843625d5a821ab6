package replay

import (
	"fmt"
	"io"
	"math"
)

// jsonOutcome is an Outcome beside the evaluation format, undefined numbers
// null.
type jsonOutcome struct {
	Rates        []number  `json:"rates"`
	WorstBlock   number    `json:"worst_block"`
	Violations   number    `json:"risk_violations"`
	Random       number    `json:"random_at_own_rate"`
	Over         number    `json:"accuracy_minus_random"`
	Over95       [2]number `json:"accuracy_minus_random_95"`
	IBC          number    `json:"ibc_lift"`
	IBCFree      number    `json:"ibc_lift_free_edge"`
	P50          number    `json:"p50_ms"`
	P95          number    `json:"p95_ms"`
	TTFT50       number    `json:"ttft_p50_ms"`
	TTFT95       number    `json:"ttft_p95_ms"`
	Missed       number    `json:"deadline_missed"`
	WastedEdgeMS number    `json:"wasted_edge_ms"`
	WastedCloud  number    `json:"wasted_cloud_usd_per_1k"`
}

func (o *Outcome) json() jsonOutcome {
	out := jsonOutcome{Rates: []number{}, WorstBlock: number(o.WorstBlock), Violations: number(o.Violations),
		Random: number(o.Random), Over: number(o.Over), Over95: [2]number{number(o.OverLow), number(o.OverHigh)},
		IBC: number(o.IBC), IBCFree: number(o.IBCFree), P50: number(o.P50), P95: number(o.P95),
		TTFT50: number(o.TTFT50), TTFT95: number(o.TTFT95), Missed: number(o.DeadlineMissed),
		WastedEdgeMS: number(o.WastedEdgeMS), WastedCloud: number(1000 * o.WastedCloud)}
	for _, v := range o.Rates {
		out.Rates = append(out.Rates, number(v))
	}
	return out
}

// outcomeText writes what the policies' own decisions came to.
func (s *SetResult) outcomeText(w io.Writer, o Options) {
	fmt.Fprint(w, "  decided\taccuracy\tless random\t95 %\trisk\tblocks over\tworst block\tAIQ\tIBC lift\twasted ms\twasted $/1k\tp50 ms\tp95 ms\tlate\n")
	for _, name := range o.Policies {
		m, ok := s.Policies[name]
		if !ok {
			continue
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s..%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, show(m.Accuracy), show(m.Over), show(m.OverLow), show(m.OverHigh),
			show(m.Risk), show(m.Violations), show(m.WorstBlock), show(m.Dollars.AIQ), show(m.IBC), whole(m.WastedEdgeMS), show(1000*m.WastedCloud),
			whole(m.P50), whole(m.P95), show(m.DeadlineMissed))
	}
}

func whole(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.0f", v)
}

// lacking says which figures the data has no columns for.
func (d *Data) lacking(o Options) (out []string) {
	has := func(f func(*Record) float64) bool {
		for i := range d.Records {
			if price(f(&d.Records[i])) {
				return true
			}
		}
		return false
	}
	edgeMS := has(func(r *Record) float64 { return r.EdgeMS })
	timed := edgeMS && has(func(r *Record) float64 { return r.CloudMS })
	for _, l := range []struct {
		there bool
		what  string
	}{
		{has(func(r *Record) float64 { return r.CloudCost }), "figures in dollars (AIQ, CQ-AUC, IBC lift, waste): no cost of the cloud (--cloud-cost names its column)"},
		{has(func(r *Record) float64 { return r.EdgeCost }), "figures in dollars other than with a free edge: no cost of the edge (--edge-cost names its column)"},
		{timed, "latencies, deadline: not of both tiers (--edge-ms and --cloud-ms name the columns)"},
		{edgeMS && has(func(r *Record) float64 { return r.CloudTTFT }), "time to the first token: not known of the cloud (--cloud-ttft-ms names its column), or no --edge-ms"},
		{!timed || o.DeadlineMS > 0, "missed deadlines: none is given (--deadline-ms)"},
	} {
		if !l.there {
			out = append(out, l.what)
		}
	}
	return out
}
