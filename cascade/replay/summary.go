package replay

import (
	"fmt"
	"math"
	"slices"

	"github.com/weirhq/weir/cascade/learn"
)

// SummaryRow is one line of published medians: how well a scorer predicts that
// the cheap model is right, and that escalation helps.
type SummaryRow struct {
	Set, Pair, Scorer string
	EdgeOK, Benefit   float64
	BenefitLow        float64 // 10 % quantile over resamples
}

func readSummary(t *table) (*Data, error) {
	d := &Data{}
	for i, cells := range t.rows {
		r := row{t: t, cells: cells}
		s := SummaryRow{
			Set: r.text("dataset"), Pair: r.text("pair"), Scorer: r.text("scorer"),
			EdgeOK: r.number("median_cheap_auroc", math.NaN()), Benefit: r.number("median_benefit_auroc", math.NaN()),
			BenefitLow: r.number("p10_benefit_auroc", math.NaN()),
		}
		if r.err != nil {
			return nil, fmt.Errorf("row %d: %w", i+1, r.err)
		}
		d.Summary = append(d.Summary, s)
	}
	return d, nil
}

// SummaryVerdict is the viability test applied to published medians of one set.
type SummaryVerdict struct {
	Set             string
	EdgeOK, Benefit float64 // medians over pairs and scorers
	Lower           float64 // median of the lower limits of Benefit
	Grade           learn.Grade
}

// GradeSummary grades each set by the median lower limit of its benefit AUROCs,
// the 10 % quantile where the file has it.
func GradeSummary(rows []SummaryRow) []SummaryVerdict {
	var names []string
	edge, benefit, low := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for _, r := range rows {
		if _, ok := benefit[r.Set]; !ok {
			names = append(names, r.Set)
		}
		edge[r.Set] = append(edge[r.Set], r.EdgeOK)
		benefit[r.Set] = append(benefit[r.Set], r.Benefit)
		if limit := r.BenefitLow; math.IsNaN(limit) {
			low[r.Set] = append(low[r.Set], r.Benefit)
		} else {
			low[r.Set] = append(low[r.Set], limit)
		}
	}
	var out []SummaryVerdict
	for _, n := range names {
		v := SummaryVerdict{Set: n, EdgeOK: median(edge[n]), Benefit: median(benefit[n]), Lower: median(low[n])}
		v.Grade = learn.GradeOf(v.Lower)
		out = append(out, v)
	}
	return out
}

// median of the values that are numbers; NaN when there is none.
func median(v []float64) float64 {
	v = slices.DeleteFunc(slices.Clone(v), math.IsNaN)
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
