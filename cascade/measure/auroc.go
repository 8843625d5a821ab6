package measure

import (
	"cmp"
	"math"
	"slices"
)

// AUROC is the probability that a positive item has a higher score than a
// negative one, ties counting half. NaN without both kinds.
func AUROC(score []float64, positive []bool) float64 {
	a, _ := WeightedAUROC(score, positive, nil)
	return a
}

// WeightedAUROC is AUROC with item weights (nil for equal) and its standard
// error by DeLong's placement values, generalised to weights. Both are NaN
// without both kinds. Source: DeLong, DeLong and Clarke-Pearson 1988.
func WeightedAUROC(score []float64, positive []bool, w []float64) (auroc, se float64) {
	n := len(score)
	idx := make([]int, n)
	var total [2]float64
	weight := func(i int) float64 {
		if w == nil {
			return 1
		}
		return w[i]
	}
	for i := range idx {
		idx[i] = i
		total[b2i(positive[i])] += weight(i)
	}
	if total[0] == 0 || total[1] == 0 {
		return math.NaN(), math.NaN()
	}
	slices.SortFunc(idx, func(a, b int) int { return cmp.Compare(score[a], score[b]) })
	place := make([]float64, n) // share of the other kind that is ordered right
	var below [2]float64
	for i := 0; i < n; {
		j := i
		var tied [2]float64
		for ; j < n && score[idx[j]] == score[idx[i]]; j++ {
			tied[b2i(positive[idx[j]])] += weight(idx[j])
		}
		for _, k := range idx[i:j] {
			if positive[k] {
				place[k] = (below[0] + tied[0]/2) / total[0]
			} else {
				place[k] = 1 - (below[1]+tied[1]/2)/total[1]
			}
		}
		below[0] += tied[0]
		below[1] += tied[1]
		if j == i { // NaN scores do not equal themselves
			j++
		}
		i = j
	}
	for i := range n {
		if positive[i] {
			auroc += weight(i) * place[i] / total[1]
		}
	}
	variance := 0.0
	for i := range n {
		d := weight(i) * (place[i] - auroc) / total[b2i(positive[i])]
		variance += d * d
	}
	return auroc, math.Sqrt(variance)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
