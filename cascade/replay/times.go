package replay

import (
	"math"

	"github.com/weirhq/weir/cascade/measure"
)

// Times are latencies in milliseconds over the rows of which they are known. An
// escalated row takes the edge's time, then the cloud's. An answer is judged
// whole: a kept one begins to show when it is complete.
type Times struct {
	P50, P95       float64 // to the end of the answer
	TTFT50, TTFT95 float64 // to its first token
	DeadlineMissed float64 // share of rows that end after the deadline
}

func (c decided) times(deadline float64) Times {
	var whole, first []float64
	for i, r := range c.rows {
		all, ttft := r.EdgeMS, r.EdgeMS
		if c.Escalated[i] {
			all, ttft = all+r.CloudMS, ttft+r.CloudTTFT
		}
		if price(r.EdgeMS) && price(r.CloudMS) {
			whole = append(whole, all)
		}
		if price(r.EdgeMS) && price(r.CloudTTFT) {
			first = append(first, ttft)
		}
	}
	q, f := measure.Quantiles(whole, .5, .95), measure.Quantiles(first, .5, .95)
	t := Times{P50: q[0], P95: q[1], TTFT50: f[0], TTFT95: f[1], DeadlineMissed: math.NaN()}
	if deadline > 0 {
		t.DeadlineMissed = measure.Exceeding(whole, deadline)
	}
	return t
}

// Latency is what an edge-first cascade costs in time at the target rate,
// milliseconds and relative to the cloud alone; NaN without latencies.
type Latency struct {
	EdgeMean, CloudMean, CascadeMean, Relative float64
	Edge, Cloud                                [2]float64 // medians and 95 % quantiles of the tiers alone
	Untimed                                    int        // rows left out, as they lack a time; 0 where all do
}

func latency(s *setData, rate float64) Latency {
	var edge, cloud []float64
	for _, k := range s.test {
		if r := s.record(k); price(r.EdgeMS) && price(r.CloudMS) {
			edge, cloud = append(edge, r.EdgeMS), append(cloud, r.CloudMS)
		}
	}
	e, c := mean(edge), mean(cloud)
	l := Latency{EdgeMean: e, CloudMean: c, CascadeMean: e + rate*c,
		Edge: [2]float64(measure.Quantiles(edge, .5, .95)), Cloud: [2]float64(measure.Quantiles(cloud, .5, .95))}
	l.Relative = l.CascadeMean / c
	if len(edge) > 0 {
		l.Untimed = len(s.test) - len(edge)
	}
	return l
}
