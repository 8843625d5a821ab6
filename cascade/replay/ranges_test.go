package replay

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// A few rows that cannot be read are left out and told; more refuse the file.
func TestBadRows(t *testing.T) {
	file := func(rows int, bad ...string) string {
		return "edge,cloud\n" + strings.Repeat("0,1\n", rows-len(bad)) + strings.Join(bad, "\n") + "\n"
	}
	for in, want := range map[string]string{
		file(300, "1,x"):           `1 row(s): they cannot be read; the first is row 300: column "cloud": "x" is not a number`,
		file(300, "1,-7", "1,inf"): `2 row(s): they cannot be read; the first is row 299: column "cloud": the score is -7`,
		file(300, "1", "1,1,1"):    "2 row(s): they cannot be read; the first is row 299: 1 cells for 2 columns",
	} {
		d, err := Read(strings.NewReader(in), "f", Columns{})
		if err != nil || len(d.LeftOut) != 1 || !strings.HasPrefix(d.LeftOut[0], want) {
			t.Errorf("%v, %+v, want %q", err, d, want)
		}
	}
	_, err := Read(strings.NewReader(file(300, "1,x", "1,?", "1,z", "1,u")), "f", Columns{})
	if err == nil || !strings.HasPrefix(err.Error(), "4 of 300 rows cannot be read; the first is row 297") {
		t.Errorf("%v", err)
	}
}

// One impossible number changes its row, not the scale of a file.
func TestStrays(t *testing.T) {
	file := func(confidence, edge, cost string) string {
		var b strings.Builder
		b.WriteString("edge,cloud,confidence,cloud_cost\n")
		rng := rand.New(rand.NewPCG(9, 9))
		for range 1999 {
			p := rng.Float64()
			fmt.Fprintf(&b, "%d,1,%.4f,2\n", b2i(rng.Float64() < p), p)
		}
		fmt.Fprintf(&b, "%s,1,%s,%s\n", edge, confidence, cost)
		return b.String()
	}
	res, sets := evalText(t, file("1", "1", "0"), "static", "gain")
	if len(res.Notes) != 0 {
		t.Fatalf("notes %q", res.Notes)
	}
	for in, note := range map[string]string{
		file("1.2", "1", "0"):    "confidence: 1 row(s) out of range are clipped",
		file("1e9", "1", "0"):    "confidence: 1 row(s) out of range are clipped",
		file("inf", "1", "0"):    "confidence: 1 row(s) out of range are clipped",
		file("1", "40", "0"):     "edge: 1 row(s) out of range are clipped",
		file("1", "1", "-0.001"): "cloud-cost: 1 row(s) out of range are clipped",
	} {
		got, other := evalText(t, in, "static", "gain")
		if len(got.Notes) != 1 || got.Notes[0] != note {
			t.Errorf("notes %q, want %q", got.Notes, note)
		}
		for _, p := range []string{"static", "gain"} {
			a, b := sets["file"].Policies[p], other["file"].Policies[p]
			if !(math.Abs(a.APGR-b.APGR) < 1e-3 && math.Abs(a.ECE-b.ECE) < 1e-3) {
				t.Errorf("%s: %s has APGR %.4f and ECE %.4f, want %.4f and %.4f", note, p, b.APGR, b.ECE, a.APGR, a.ECE)
			}
		}
	}
}

// An infinite cost or time is unknown, and the largest number is one: both are
// written, and the other rows' figures stay.
func TestInfiniteAmounts(t *testing.T) {
	file := func(column, value string) string {
		return "edge,cloud,confidence,edge_ms,cloud_ms,swap_score," + column + "\n" +
			strings.Repeat("0,1,.2,10,20,1,4\n1,1,.9,10,20,0,4\n", 300) + "1,1,.8,10,20,1," + value + "\n"
	}
	for column, flag := range map[string]string{"edge_cost": "edge-cost", "cloud_cost": "cloud-cost",
		"cloud_ttft_ms": "cloud-ttft-ms", "prompt_chars": "prompt-chars"} {
		for value, note := range map[string]string{"inf": flag + ": 1 row(s) are infinite: they count as unknown",
			"-Infinity": flag + ": 1 row(s) are infinite: they count as unknown", "1e308": ""} {
			res, _ := evalText(t, file(column, value), "static", "gain")
			if told := strings.Contains(strings.Join(res.Notes, "\n"), "infinite"); told != (note != "") || told && !slices.Contains(res.Notes, note) {
				t.Errorf("%s %s: notes %q, want %q", column, value, res.Notes, note)
			}
			if err := res.WriteJSON(io.Discard); err != nil {
				t.Errorf("%s %s: %v", column, value, err)
			}
		}
	}
	slow := strings.Replace(file("edge_cost", "4"), "10,20", "10,inf", 1)
	swap := strings.Replace(file("edge_cost", "4"), "20,1,4", "20,inf,4", 1)
	for in, note := range map[string]string{slow: "cloud-ms: 1 row(s)", swap: "swap-edge: 1 row(s)"} {
		res, sets := evalText(t, in, "static")
		if !strings.HasPrefix(strings.Join(res.Notes, "\n"), note) || sets["file"].Latency.CloudMean != 20 {
			t.Errorf("notes %q, want %q; the cloud takes %v ms, want 20", res.Notes, note, sets["file"].Latency.CloudMean)
		}
	}
}

func TestNumbersInJSON(t *testing.T) {
	for v, want := range map[float64]string{1.23456789: "1.234568", 1e305: "1e+305", -math.MaxFloat64: "-1.7976931348623157e+308",
		math.Inf(1): "null", math.Inf(-1): "null"} {
		if got, err := json.Marshal(number(v)); err != nil || string(got) != want {
			t.Errorf("%v is %s, %v: want %s", v, got, err, want)
		}
	}
	if got, err := json.Marshal(number(math.NaN())); err != nil || string(got) != "null" {
		t.Errorf("NaN is %s, %v", got, err)
	}
}

func TestScoreScales(t *testing.T) {
	for in, want := range map[string]float64{
		"7,2": 1, "0.7,1": .7, "7,10": .7, "70,100": .7, "7,28": .25,
	} {
		d, err := Read(strings.NewReader("edge,cloud\n"+in+"\n"), "f", Columns{})
		if err != nil || math.Abs(d.Records[0].Edge-want) > 1e-12 {
			t.Errorf("%s: %v, %+v, want %v", in, err, d, want)
		}
	}
	grades := "edge,cloud\n" + strings.Repeat("5,10\n", 200) + "5,1000\n"
	d, err := Read(strings.NewReader(grades), "f", Columns{})
	if err != nil || d.Records[0].Edge != .5 || d.Records[200].Cloud != 1 {
		t.Errorf("%v, %+v", err, d.Records[0])
	}
	mt := "question_id,category,turn,weak_score,strong_score\n81,w,1,5,9\n"
	if d, err := Read(strings.NewReader(mt), "f", Columns{}); err != nil || d.Records[0].Edge != .5 || d.Records[0].Cloud != .9 {
		t.Errorf("%v, %+v", err, d)
	}
}

// The middle and spread of scores are those of most of them.
func TestScaleOfScores(t *testing.T) {
	values := make([]float64, 1001)
	for i := range values {
		values[i] = float64(i-500) / 100
	}
	want := fitScale(values)
	values[1000] = 1e9
	if got := fitScale(values); got.kind != scaleScore || math.Abs(got.mean-want.mean) > .02 || math.Abs(got.sd-want.sd) > .02 {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := fitScale([]float64{5, 5, 5, 5, 5, 5, 5, 9}); !(got.sd > 1 && got.sd < 2) {
		t.Errorf("%+v", got)
	}
}
