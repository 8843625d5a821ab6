package evaluate

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirhq/weir/cascade/measure"
	"github.com/weirhq/weir/engine/models"
)

// maxEscalated is the share of escalations that the hindsight threshold may
// use: the bar of the product's own test.
const maxEscalated = 0.40

// Report is the result of an evaluation. Shares and accuracies are 0..1.
type Report struct {
	Prompts int `json:"prompts"`
	// TargetRate is the share of escalations that auto was told to hold.
	TargetRate *float64        `json:"target_rate,omitempty"`
	Modes      map[string]Mode `json:"modes"`
	// GapRecovered is (auto - edge-only) / (cloud-only - edge-only) of the
	// accuracies, with a paired bootstrap interval of 95 %.
	GapRecovered   float64    `json:"gap_recovered"`
	GapRecovered95 [2]float64 `json:"gap_recovered_95"`
	// Hindsight is the best that one threshold on the edge's confidence could
	// have done on these very prompts at no more than 40 % escalation.
	Hindsight Hindsight `json:"hindsight"`
	// ECE is the expected calibration error of the edge's confidence, ten bins.
	ECE float64 `json:"ece"`

	lines []models.Example
	rows  []row
}

// Mode is one mode's result.
type Mode struct {
	Accuracy   float64            `json:"accuracy"`
	Accuracy95 [2]float64         `json:"accuracy_95"` // Wilson interval
	Escalated  float64            `json:"escalated"`
	TTFT       Quantiles          `json:"ttft_ms"`
	E2E        Quantiles          `json:"e2e_ms"`
	Tasks      map[string]float64 `json:"tasks"` // accuracy by task
}

// Quantiles are in milliseconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
}

// Hindsight is a threshold chosen after the fact.
type Hindsight struct {
	Threshold float64 `json:"threshold"`
	Accuracy  float64 `json:"accuracy"`
	Escalated float64 `json:"escalated"`
}

func report(lines []models.Example, rows []row) *Report {
	r := &Report{Prompts: len(rows), Modes: map[string]Mode{}, lines: lines, rows: rows}
	for m, name := range modes {
		r.Modes[name] = modeOf(lines, rows, m)
	}
	r.GapRecovered = gap(rows, func(i int) int { return i })
	r.GapRecovered95 = bootstrapGap(rows)
	r.Hindsight = bestThreshold(rows)
	r.ECE = ece(rows)
	return r
}

func modeOf(lines []models.Example, rows []row, m int) Mode {
	var correct, escalated int
	var ttft, total []time.Duration
	byTask := map[string][2]int{}
	for i, r := range rows {
		o := r[m]
		n := byTask[lines[i].Task]
		n[1]++
		if o.correct {
			correct++
			n[0]++
		}
		if o.escalated {
			escalated++
		}
		byTask[lines[i].Task] = n
		ttft, total = append(ttft, o.ttft), append(total, o.total)
	}
	n := float64(len(rows))
	out := Mode{Accuracy: float64(correct) / n, Accuracy95: wilson(correct, len(rows)), Escalated: float64(escalated) / n,
		TTFT: quantiles(ttft), E2E: quantiles(total), Tasks: map[string]float64{}}
	for task, c := range byTask {
		out.Tasks[task] = float64(c[0]) / float64(c[1])
	}
	return out
}

// wilson is the 95 % score interval of a share (Wilson 1927).
func wilson(k, n int) [2]float64 {
	const z = 1.959964
	p, nn := float64(k)/float64(n), float64(n)
	mid := (p + z*z/(2*nn)) / (1 + z*z/nn)
	half := z / (1 + z*z/nn) * math.Sqrt(p*(1-p)/nn+z*z/(4*nn*nn))
	return [2]float64{mid - half, mid + half}
}

func quantiles(d []time.Duration) Quantiles {
	slices.Sort(d)
	at := func(q float64) float64 { return float64(d[min(len(d)-1, int(q*float64(len(d))))]) / 1e6 }
	return Quantiles{P50: at(0.50), P95: at(0.95)}
}

// gap is the recovered share of the accuracy gap over the rows that pick
// chooses; 1 when there is no gap.
func gap(rows []row, pick func(int) int) float64 {
	var n [3]int
	for i := range rows {
		for m, o := range rows[pick(i)] {
			if o.correct {
				n[m]++
			}
		}
	}
	if n[cloudOnly] == n[edgeOnly] {
		return 1
	}
	return float64(n[auto]-n[edgeOnly]) / float64(n[cloudOnly]-n[edgeOnly])
}

func bootstrapGap(rows []row) [2]float64 {
	const draws = 2000
	rng := rand.New(rand.NewPCG(1, 2)) // the same rows give the same interval
	gaps := make([]float64, draws)
	for d := range gaps {
		gaps[d] = gap(rows, func(int) int { return rng.IntN(len(rows)) })
	}
	slices.Sort(gaps)
	return [2]float64{gaps[draws*25/1000], gaps[draws*975/1000]}
}

// bestThreshold sweeps every threshold: rows below it take the cloud's answer.
func bestThreshold(rows []row) Hindsight {
	order := make([]int, len(rows))
	correct := 0
	for i, r := range rows {
		order[i] = i
		if r[edgeOnly].correct {
			correct++
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(rows[a][edgeOnly].confidence, rows[b][edgeOnly].confidence)
	})
	n := float64(len(rows))
	best := Hindsight{Accuracy: float64(correct) / n}
	for k, i := range order {
		correct += bit(rows[i][cloudOnly].correct) - bit(rows[i][edgeOnly].correct)
		if float64(k+1)/n > maxEscalated {
			break
		}
		if k+1 < len(order) && rows[order[k+1]][edgeOnly].confidence == rows[i][edgeOnly].confidence {
			continue // a threshold cannot part equal confidences
		}
		if acc := float64(correct) / n; acc > best.Accuracy {
			next := 1.0
			if k+1 < len(order) {
				next = rows[order[k+1]][edgeOnly].confidence
			}
			best = Hindsight{Threshold: (rows[i][edgeOnly].confidence + next) / 2, Accuracy: acc, Escalated: float64(k+1) / n}
		}
	}
	return best
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// ece is the calibration error of the edge's confidence, 0 where it has none.
func ece(rows []row) float64 {
	var p, right []float64
	for _, r := range rows {
		if o := r[edgeOnly]; o.confidence >= 0 {
			p, right = append(p, o.confidence), append(right, float64(bit(o.correct)))
		}
	}
	if len(p) == 0 {
		return 0
	}
	return measure.ECE(measure.Reliability(p, right, nil, 10))
}
