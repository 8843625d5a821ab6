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
	// It counts for the target of a fixed threshold, too.
	gaps := "edge,cloud,confidence\n"
	for i := range 1000 {
		gaps += []string{fmt.Sprintf("1,1,%.4f\n", float64(i)/1000), "1,1,nan\n"}[b2i(i%5 == 0)]
	}
	if res, _ := evalText(t, gaps, "static"); math.Abs(res.Streams["static"].Rate-.3) > .01 {
		t.Errorf("rate %v with a fifth of confidences missing, want .3", res.Streams["static"].Rate)
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

// A task may have the name of the pool, which then there is not.
func TestTaskNamedPooled(t *testing.T) {
	_, sets := evalText(t, "task,edge,cloud\npooled,0,1\nother,1,1\n", "oracle")
	if len(sets) != 2 || sets["pooled"].N != 1 || sets["other"].N != 1 {
		t.Errorf("sets %+v", sets)
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
	if !slices.Equal(d.LeftOut, want) || len(d.Records) != 3 || !d.HasSplit() {
		t.Errorf("notes %q, %d records", d.LeftOut, len(d.Records))
	}
	in = "dataset,haiku_score,gemini_score,q_chars\nA,1,0,5\nA,,1,5\n"
	if d, err := Read(strings.NewReader(in), "f", Columns{}); err != nil || len(d.Records) != 1 || len(d.LeftOut) != 1 {
		t.Errorf("a known layout with a row without score: %+v, %v", d, err)
	}
	for in, want := range map[string]string{
		"cloud,x\n1,1\n":       "--edge",
		"edge,x\n1,1\n":        "--cloud",
		"edge,cloud\n,1\n":     `"edge" and "cloud"`,
		"edge,cloud\n1,-2\n":   "row 1",
		"":                     "empty",
		`[{"edge":1}]`:         "--cloud",
		"edge,cloud\n1,inf\n":  "+Inf",
		"edge,cloud\n1,yess\n": `"cloud": "yess"`,
		"\xff\xfee\x00":        "UTF-8",
		"{\"edge\":1}\n3":      "line 2: a number where",
		`[{"edge":1}`:          "does not end",
		`{"edge":1}]`:          "after the last",
	} {
		if _, err := Read(strings.NewReader(in), "f", Columns{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", in, err, want)
		}
	}
}

// One record, as the world writes it.
func TestForeignShapes(t *testing.T) {
	const columns = "edge=edge_ok, cloud=cloud_ok, confidence=conf"
	for name, c := range map[string]struct{ in, columns string }{
		"semicolons":        {"edge_ok;cloud_ok;conf\n0;1;0.25\n", columns},
		"tabs":              {"edge_ok\tcloud_ok\tconf\tnote\n0\t1\t0.25\ta,b,c,d,e,f\n", columns},
		"nameless columns":  {",edge_ok,cloud_ok,conf,\n7,0,1,0.25,\n", columns},
		"verdicts":          {"edge_ok,cloud_ok,conf\nWrong,Right,25%\n", columns},
		"letters":           {"edge_ok,cloud_ok,conf\nF,y, 0.25\n", columns},
		"words apart":       {"Edge Correct,Cloud-Correct,Edge Confidence\n0,1,0.25\n", "edge=Edge Correct, cloud=Cloud-Correct, confidence=Edge Confidence"},
		"other words":       {"correct_small,correct_large,small_conf\n0,1,0.25\n", "edge=correct_small, cloud=correct_large, confidence=small_conf"},
		"answers beside":    {"edge,cloud,edge_ok,cloud_ok,conf\nParis,Rome,0,1,0.25\n", columns},
		"an array":          {` [{"edge_ok":0,"cloud_ok":true,"conf":0.25}] `, columns},
		"objects on lines":  {"{\n\"edge_ok\": \"0\",\n\"cloud_ok\": 1,\n\"conf\": 0.25}\n", columns},
		"objects in object": {`{"edge":{"ok":0,"conf":0.25},"cloud":{"ok":1}}`, "edge=edge_ok, cloud=cloud_ok, confidence=edge_conf"},
		"Python's numbers":  {`{"edge_ok":0,"cloud_ok":1,"conf":0.25,"x":[NaN,-Infinity],"s":"NaN \" Infinity"}`, columns},
	} {
		d, err := Read(strings.NewReader(c.in), "f", Columns{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r := d.Records[0]; r.Edge != 0 || r.Cloud != 1 || r.Signals[SignalConfidence] != .25 || strings.Join(d.Columns, ", ") != c.columns {
			t.Errorf("%s: %+v, columns %q", name, r, d.Columns)
		}
	}
	in := `{"edge_ok":NaN,"cloud_ok":1,"conf":Infinity}` + "\n" + `{"edge_ok":1,"cloud_ok":1,"conf":-Infinity}`
	if d, err := Read(strings.NewReader(in), "f", Columns{}); err != nil || len(d.Records) != 1 || !math.IsInf(d.Records[0].Signals[SignalConfidence], -1) {
		t.Errorf("Python's numbers: %+v, %v", d, err)
	}
}

func TestSplits(t *testing.T) {
	const train, test, none = SplitTrain, SplitTest, SplitNone
	for cells, want := range map[string][3]Split{
		"train val test":             {train, train, test},
		"training Validation  ":      {train, test, none},
		"dev test other":             {train, test, none},
		"calib held-out calibration": {train, test, train},
	} {
		in := "edge,cloud,split\n"
		for _, c := range strings.Split(cells, " ")[:3] {
			in += "1,1," + c + "\n"
		}
		d, err := Read(strings.NewReader(in), "f", Columns{})
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]Split{d.Records[0].Split, d.Records[1].Split, d.Records[2].Split}; got != want || len(d.Notes) != 0 {
			t.Errorf("%q: %v, want %v; notes %q", cells, got, want, d.Notes)
		}
	}
}

// What is read in another way than a person may expect is said.
func TestNotes(t *testing.T) {
	falling := "edge,cloud,confidence\n"
	for i := range 200 {
		falling += fmt.Sprintf("%d,1,%.3f\n", b2i(i >= 100), 1-float64(i)/200)
	}
	for in, want := range map[string]string{
		"edge,cloud\n40,90\n":                 "scores go up to 90",
		"edge,cloud,split\n1,1,0\n1,1,1\n":    `column "split" does not tell train from test (it has 0, 1)`,
		"edge,cloud,confidence\n1,1,1\n":      "risk: 1 rows to learn from",
		falling:                               "AUROC 0.00",
		"edge,cloud,split\n1,1,test\n,1,test": "it has test",
	} {
		res, _ := evalText(t, in, "risk", "random")
		var b strings.Builder
		if err := res.WriteText(&b); err != nil || !strings.Contains(b.String(), "\nnote: ") || !strings.Contains(b.String(), want) {
			t.Errorf("%q: no %q in %s, %v", in[:20], want, b.String(), err)
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
