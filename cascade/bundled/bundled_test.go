package bundled

import (
	"compress/gzip"
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/weirhq/weir/cascade"
)

type answer struct {
	cascade.Sample
	cloud float64
}

// rows reads the columns of a file of testdata.
func rows(t *testing.T, name string) [][]float64 {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(zr).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	out := make([][]float64, len(lines)-1)
	for i, line := range lines[1:] {
		for _, s := range line {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil {
				t.Fatal(err)
			}
			out[i] = append(out[i], v)
		}
	}
	return out
}

// answers are what the bundled edge and cloud models answered to the
// calibration prompts (greedy, llama.cpp v0.5.0): one row a prompt.
func answers(t *testing.T) []answer {
	t.Helper()
	var out []answer
	for _, v := range rows(t, "hub-edge-calibration.csv.gz") {
		s := cascade.Signals{Usable: true, Tokens: int(v[0]), SumLogProb: v[1], MeanLogProb: v[1] / v[0], MinLogProb: v[2]}
		out = append(out, answer{cascade.Sample{Signals: s, Right: v[3]}, v[4]})
	}
	return out
}

// The shipped numbers are those that FitPlatt finds on the shipped answers.
func TestHubEdgeIsTheFit(t *testing.T) {
	c, err := HubEdge()
	if err != nil {
		t.Fatal(err)
	}
	var samples []cascade.Sample
	for _, a := range answers(t) {
		samples = append(samples, a.Sample)
	}
	fit, err := cascade.FitPlatt(samples)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(fit.Bias-c.Bias) > .001 || math.Abs(fit.Terms[0].Weight-c.Terms[0].Weight) > .001 || fit.Samples != c.Samples {
		t.Errorf("hub-edge.json has bias %v weight %v n %d, the fit %v %v %d",
			c.Bias, c.Terms[0].Weight, c.Samples, fit.Bias, fit.Terms[0].Weight, fit.Samples)
	}
}

// So are those for beginnings: the answers' first 16, 32, 64, 96 and 128 tokens
// where they go on.
func TestHubEdgePrefixIsTheFit(t *testing.T) {
	c, err := HubEdge()
	if err != nil {
		t.Fatal(err)
	}
	var samples []cascade.Sample
	for _, v := range rows(t, "hub-edge-prefix.csv.gz") {
		samples = append(samples, cascade.Sample{Signals: cascade.Signals{Usable: true, Tokens: int(v[0]), SumLogProb: v[1]}, Right: v[2]})
	}
	fit, err := cascade.FitPlatt(samples, cascade.FeatureProduct, cascade.FeatureTokens)
	if err != nil {
		t.Fatal(err)
	}
	p := c.Prefix
	if p == nil || math.Abs(fit.Bias-p.Bias) > .001 || math.Abs(fit.Terms[0].Weight-p.Terms[0].Weight) > .001 || math.Abs(fit.Terms[1].Weight-p.Terms[1].Weight) > .001 {
		t.Errorf("hub-edge.json has %+v, the fit %+v", p, fit)
	}
}

// At its threshold the cascade recovers most of the gap at a bounded rate.
func TestHubEdgeRecoversTheGap(t *testing.T) {
	c, err := HubEdge()
	if err != nil {
		t.Fatal(err)
	}
	pol := cascade.ThresholdPolicy(c.Threshold)
	var edge, cloud, auto, escalated float64
	var gap [11]float64
	all := answers(t)
	for _, a := range all {
		v := cascade.After(&cascade.Request{}, &cascade.Answer{Signals: a.Signals}, &c, &pol, &cascade.Node{EdgeReady: true})
		edge += a.Right
		cloud += a.cloud
		if v.Escalate {
			auto += a.cloud
			escalated++
		} else {
			auto += a.Right
		}
		bin := int(v.Confidence * 10)
		gap[bin] += v.Confidence - a.Right
	}
	n, ece := float64(len(all)), 0.0
	for _, g := range gap {
		ece += math.Abs(g) / n
	}
	recovered := (auto - edge) / (cloud - edge)
	if rate := escalated / n; rate > .32 || recovered < .92 || ece > .05 {
		t.Errorf("escalates %.3f (most .32), recovers %.3f of the gap (least .92), ECE %.3f (most .05)", rate, recovered, ece)
	}
}
