package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// evalText evaluates policies on a file in the documented format.
func evalText(t *testing.T, in string, policies ...string) (*Result, map[string]SetResult) {
	t.Helper()
	d, err := Read(strings.NewReader(in), "file", Columns{})
	if err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	o.Policies, o.Bootstrap = policies, 0
	res, err := Evaluate(d, o)
	if err != nil {
		t.Fatal(err)
	}
	sets := map[string]SetResult{}
	for _, s := range res.Sets {
		sets[s.Name] = s
	}
	return res, sets
}

// An answer without a confidence goes first, and says nothing of calibration.
func TestMissingConfidence(t *testing.T) {
	_, sets := evalText(t, "edge,cloud,confidence\n1,1,1\n1,1,\n0,1,0\n0,1,0\n", "static")
	m := sets["file"].Policies["static"]
	if m.ECE != 0 || m.CPT50 != .5 {
		t.Errorf("ECE %v, CPT50 %v: want 0 and .5", m.ECE, m.CPT50)
	}
	// Rounding does not turn probabilities into scores.
	_, sets = evalText(t, "edge,cloud,confidence\n1,1,1.0000002\n0,1,-0.0000001\n0,1,0\n", "static")
	if m := sets["file"].Policies["static"]; !(m.ECE < 1e-6) {
		t.Errorf("ECE %v, want 0", m.ECE)
	}
}

// A confidence that runs against the truth is not followed: within its task
// gain has no order, and the pool sends the task to the better tier.
func TestContraryConfidence(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var b strings.Builder
	b.WriteString("task,edge,cloud,confidence,split\n")
	for i := range 4000 {
		p, task := rng.Float64(), []string{"honest", "contrary"}[i%2]
		truth := p
		if task == "contrary" {
			truth = .6 * (1 - p)
		}
		fmt.Fprintf(&b, "%s,%d,%d,%.4f,%s\n", task, b2i(rng.Float64() < truth), b2i(rng.Float64() < .9), p, []string{"train", "test"}[i/2%2])
	}
	_, sets := evalText(t, b.String(), "static", "gain")
	contrary, pooled := sets["contrary"].Policies, sets["pooled"].Policies
	if g := contrary["gain"]; math.Abs(g.APGR-.5) > 1e-9 || g.ECE > .05 || contrary["static"].APGR > .45 || g.Grade == "usable" {
		t.Errorf("contrary task: gain has APGR %.3f, ECE %.3f, %s; static %.3f", g.APGR, g.ECE, g.Grade, contrary["static"].APGR)
	}
	if pooled["gain"].APGR < pooled["static"].APGR+.05 {
		t.Errorf("pooled: gain %.3f, static %.3f", pooled["gain"].APGR, pooled["static"].APGR)
	}
}

// A policy that needs several tasks has a rate in the pool; a column of
// subjects makes it work within a task.
func TestSubjects(t *testing.T) {
	var b strings.Builder
	b.WriteString("task,topic,edge,cloud\n")
	for i := range 2000 {
		fmt.Fprintf(&b, "t%d,s%d,%d,1\n", i%2, i/2%4, b2i(i/2%4 > 0))
	}
	_, sets := evalText(t, b.String(), "subject-prior")
	if m := sets["t0"].Policies["subject-prior"]; m.APGR < .85 || math.Abs(m.Rate-.3) > .05 {
		t.Errorf("by topic: %+v", m)
	}
	res, sets := evalText(t, strings.Replace(b.String(), "topic", "other", 1), "subject-prior")
	if _, ok := sets["t0"].Policies["subject-prior"]; ok || len(res.Skipped) != 2 || !strings.Contains(res.Skipped[0], "--subject") {
		t.Errorf("one subject a task: left out %q", res.Skipped)
	}
	if m, ok := sets["pooled"].Policies["subject-prior"]; !ok || math.Abs(m.Rate-.3) > .05 {
		t.Errorf("pooled: %+v", m)
	}
}

func TestRowsLeftOut(t *testing.T) {
	in := "\xef\xbb\xbfSplit,EDGE,Cloud,Confidence,note\r\ntrain,1,1,.5,\"a,\r\nb\"\r\n Test ,0,1,.2,\r\nlater,0,1,.2,\r\ntest,,1,.2,\r\n"
	d, err := Read(strings.NewReader(in), "f", Columns{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"1 row(s): they lack the score of a tier", "1 row(s): they are neither train nor test"}
	if !slices.Equal(d.Notes, want) || len(d.Records) != 3 || !d.HasSplit() {
		t.Errorf("notes %q, %d records", d.Notes, len(d.Records))
	}
	in = "dataset,haiku_score,gemini_score,q_chars\nA,1,0,5\nA,,1,5\n"
	if d, err := Read(strings.NewReader(in), "f", Columns{}); err != nil || len(d.Records) != 1 || len(d.Notes) != 1 {
		t.Errorf("a known layout with a row without score: %+v, %v", d, err)
	}
	for in, want := range map[string]string{
		"cloud,x\n1,1\n":       "--edge",
		"edge,x\n1,1\n":        "--cloud",
		"edge,cloud\n,1\n":     `"edge" and "cloud"`,
		"edge,cloud\n1,-2\n":   "row 1",
		"":                     "empty",
		`[{"edge":1}]`:         "one object a line",
		"edge,cloud\n1,inf\n":  "+Inf",
		"edge,cloud\n1,yess\n": `"cloud": "yess"`,
	} {
		if _, err := Read(strings.NewReader(in), "f", Columns{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", in, err, want)
		}
	}
}

// Rows in order of confidence, as an export may have them, do not fool the
// tracker by a first window of one kind.
func TestRateOfSortedRows(t *testing.T) {
	for _, falling := range []bool{false, true} {
		var b strings.Builder
		b.WriteString("edge,cloud,confidence\n")
		for i := range 20_000 {
			p := float64(i) / 20_000
			if falling {
				p = 1 - p
			}
			fmt.Fprintf(&b, "%d,1,%.6f\n", i%2, 1-(1-p)*(1-p)*(1-p))
		}
		res, _ := evalText(t, b.String(), "confidence")
		if st := res.Streams["confidence"]; math.Abs(st.Rate-.3) > .002 || st.WorstWindow > .02 {
			t.Errorf("falling %v: rate %.4f, worst window %.4f off", falling, st.Rate, st.WorstWindow)
		}
	}
}
