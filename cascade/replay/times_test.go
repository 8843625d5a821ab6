package replay

import "testing"

// Latencies row by row: an escalated answer takes the edge's time, then the
// cloud's; a row without a latency is left out and told.
func TestTimesOfAFile(t *testing.T) {
	const in = "edge,cloud,confidence,edge_ms,cloud_ms,cloud_ttft_ms\n" +
		"1,1,.9,100,300,30\n1,1,.8,200,500,50\n0,1,.1,100,400,40\n0,1,.1,,600,60\n"
	o := DefaultOptions()
	o.Policies, o.Bootstrap = []string{"always-cloud", "always-edge"}, 0
	res := evaluatedText(t, in, o)
	set := res.Sets[0]
	cloud, edge := set.Policies["always-cloud"], set.Policies["always-edge"]
	equal(t, "p50 of all escalated", cloud.P50, 500)
	equal(t, "p95 of all escalated", cloud.P95, 700)
	equal(t, "first token, p95", cloud.TTFT95, 250)
	equal(t, "p95 of the edge", edge.P95, 200)
	equal(t, "its first token, judged whole", edge.TTFT95, 200)
	equal(t, "mean of the cascade", set.Latency.CascadeMean, 400./3+.3*400)
	equal(t, "p95 of the cloud alone", set.Latency.Cloud[1], 500)
	equal(t, "rows left out", float64(set.Latency.Untimed), 1)
}
