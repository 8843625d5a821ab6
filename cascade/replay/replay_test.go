package replay

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/internal/cli"
)

// synthetic writes a file in the documented format: two tasks, an edge whose
// confidence is honest in one and useless in the other.
func synthetic(n int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	b.WriteString("id,edge,cloud,confidence,edge_cost,cloud_cost,edge_ms,cloud_ms,task,split,prompt\n")
	for i := range n {
		p, task, word := rng.Float64(), "good", "light"
		truth := p
		if i%2 == 1 {
			task, truth, word = "bad", .5, "prove"
		}
		split := "test"
		if i%3 == 0 {
			split = "train"
		}
		fmt.Fprintf(&b, "%d,%d,%d,%.4f,0.00001,0.001,50,300,%s,%s,%s %d\n", i, b2i(rng.Float64() < truth), b2i(rng.Float64() < .95), p, task, split, word, i)
	}
	return b.String()
}

func b2i(b bool) int { return int(b2f(b)) }

func TestDocumentedFormat(t *testing.T) {
	d, err := Read(strings.NewReader(synthetic(3000)), "x", Columns{})
	if err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	o.Policies, o.Bootstrap = PolicyNames(), 50
	res, err := Evaluate(d, o)
	if err != nil {
		t.Fatal(err)
	}
	sets := map[string]SetResult{}
	for _, s := range res.Sets {
		sets[s.Name] = s
	}
	if len(sets) != 3 || sets["pooled"].N != 2000 || sets["pooled"].Train != 1000 {
		t.Fatalf("sets %v", d.Sets())
	}
	good, bad := sets["good"].Policies["gain"], sets["bad"].Policies["gain"]
	if good.APGR < .65 || good.Grade != "usable" || bad.Grade == "usable" {
		t.Errorf("good task: APGR %.3f %s, bad task: %s", good.APGR, good.Grade, bad.Grade)
	}
	pooled := sets["pooled"]
	if g, s := pooled.Policies["gain"], pooled.Policies["static"]; g.APGR <= s.APGR {
		t.Errorf("calibration per task ranks no better than raw: %.3f and %.3f", g.APGR, s.APGR)
	}
	if g := pooled.Policies["gain"]; g.ECE > .05 || !(g.Dollars.CQAUC > .6) {
		t.Errorf("ECE %.3f, CQ-AUC %.3f", g.ECE, g.Dollars.CQAUC)
	}
	for name, want := range map[string]float64{"always-edge": 0, "always-cloud": 1, "gain": .30} {
		if got := res.Streams[name].Rate; math.Abs(got-want) > .01 {
			t.Errorf("rate of %s is %.3f, want %.2f", name, got, want)
		}
	}
	if r := res.Streams["risk"]; !r.Feasible || r.Risk > .07 {
		t.Errorf("risk %+v", r)
	}
	if a := pooled.Policies["adaptive"]; a.ECE > .05 || a.APGR < pooled.Policies["gain"].APGR-.03 {
		t.Errorf("adaptive: APGR %.3f, ECE %.3f", a.APGR, a.ECE)
	}
	if b := pooled.Baselines; b.OracleAtRate < b.StaticAtRate || b.StaticAtRate < b.RandomAtRate {
		t.Errorf("baselines out of order: %+v", b)
	}
	if l := pooled.Latency; math.Abs(l.Relative-(50+.3*300)/300) > 1e-9 {
		t.Errorf("latency %+v", l)
	}
}

func TestOtherShapes(t *testing.T) {
	t.Run("named columns and log-probabilities", func(t *testing.T) {
		in := "a,b,lp\n1,1,-0.1\n0,1,-2\n1,0,-0.2\n0,1,-3\n"
		d, err := Read(strings.NewReader(in), "file", Columns{Edge: "a", Cloud: "b", Confidence: "lp", Set: "mine"})
		if err != nil {
			t.Fatal(err)
		}
		if s := d.Sets(); len(s) != 1 || s[0] != "mine" || d.Records[1].Signals[SignalConfidence] != -2 {
			t.Errorf("sets %v, record %+v", s, d.Records[1])
		}
	})
	t.Run("gzipped JSON lines with grades to ten", func(t *testing.T) {
		var buf bytes.Buffer
		zw := gzip.NewWriter(&buf)
		fmt.Fprintln(zw, `{"edge":10,"cloud":5,"confidence":0.5,"task":"t"}`)
		fmt.Fprintln(zw, `{"edge":true,"cloud":8,"task":"t","confidence":null}`)
		zw.Close()
		d, err := Read(&buf, "file", Columns{})
		if err != nil {
			t.Fatal(err)
		}
		if d.Records[0].Edge != 1 || d.Records[0].Cloud != .5 || !math.IsNaN(d.Records[1].Signals[SignalConfidence]) {
			t.Errorf("records %+v", d.Records)
		}
	})
	for name, in := range map[string]string{
		"no edge column":     "x,y\n1,2\n",
		"not a number":       "edge,cloud\n1,many\n",
		"missing score":      "edge,cloud\n1,\n",
		"negative":           "edge,cloud\n1,-4\n",
		"no rows":            "edge,cloud\n",
		"empty":              "",
		"column twice":       "edge,edge\n1,2\n",
		"ragged":             "edge,cloud\n1\n",
		"broken JSON":        "{\"edge\":1,\n",
		"not gzip after all": "\x1f\x8bxxxx",
	} {
		if _, err := Read(strings.NewReader(in), "f", Columns{}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	_, err := Read(strings.NewReader("edge,cloud\n1,1\n"), "f", Columns{Confidence: "nope"})
	if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "nope") {
		t.Errorf("unknown column: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(synthetic(5)))
	f.Add([]byte(`{"edge":1,"cloud":0}`))
	f.Add([]byte("task,s_p1,s_margin,s_ent,agree\nt,.5,.1,1,1\n"))
	f.Add([]byte("dataset,median_cheap_auroc,median_benefit_auroc\nx,.5,.6\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		d, err := Read(bytes.NewReader(data), "f", Columns{})
		if err != nil {
			return
		}
		o := DefaultOptions()
		o.Policies, o.Bootstrap = PolicyNames(), 2
		res, err := Evaluate(d, o)
		if err != nil {
			t.Fatal(err)
		}
		var buf bytes.Buffer
		if err := res.WriteJSON(&buf); err != nil {
			t.Fatal(err)
		}
		if err := res.WriteHTML(&buf); err != nil {
			t.Fatal(err)
		}
	})
}

func runCommand(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
	code = cli.Main(context.Background(), env, []cli.Command{Command()}, append([]string{"cascade"}, args...))
	return code, out.String(), errs.String()
}

func TestEvalCommand(t *testing.T) {
	dir := t.TempDir()
	file, page := filepath.Join(dir, "d.csv"), filepath.Join(dir, "p.html")
	if err := os.WriteFile(file, []byte(synthetic(900)), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runCommand(t, "eval", "--data", file, "--policy", "static,gain,oracle", "--json", "--html", page, "--svg", dir, "--bootstrap", "20")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var got struct {
		Sets map[string]struct {
			Policies map[string]map[string]*float64
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	p := got.Sets["good"].Policies["gain"]
	for _, key := range []string{"apgr", "auc", "cpt50", "cpt80", "cpt95", "auroc_edge_ok", "auroc_benefit", "ece", "rate"} {
		if p[key] == nil {
			t.Errorf("gain has no %s", key)
		}
	}
	if len(p) != 9 {
		t.Errorf("gain has %d members, want 9", len(p))
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(html), "<svg"); n < 6 {
		t.Errorf("%d plots in the page, want two per set", n)
	}
	if _, err := os.Stat(filepath.Join(dir, "pooled-curve.svg")); err != nil {
		t.Error(err)
	}
	code, out, _ = runCommand(t, "eval", "--data", file, "--policy", "static,gain")
	if code != 0 || !strings.Contains(out, "better by") {
		t.Errorf("exit %d, text does not compare: %s", code, out)
	}
	for _, bad := range [][]string{
		{"eval"}, {"eval", "--data", file, "--policy", "nope"}, {"eval", "--data", file, "--rate", "2"},
		{"eval", "--data", file, "extra"}, {"eval", "--nope"},
	} {
		if code, _, errs := runCommand(t, bad...); code != 2 || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: exit %d, %q", bad, code, errs)
		}
	}
	if code, _, errs := runCommand(t, "eval", "--data", file, "--policy", "margin"); code != 1 || !strings.Contains(errs, "no margin") {
		t.Errorf("a policy that reads what is not there: exit %d, %q", code, errs)
	}
}

// The replayer decides with the code that production runs.
func BenchmarkReplay(b *testing.B) {
	d, err := Read(strings.NewReader(synthetic(10000)), "x", Columns{})
	if err != nil {
		b.Fatal(err)
	}
	rows, priority := make([]int, len(d.Records)), make([]float64, len(d.Records))
	for i := range rows {
		rows[i], priority[i] = i, -d.Records[i].Signals[SignalConfidence]
	}
	b.ReportAllocs()
	for b.Loop() {
		runStream(d, rows, priority, threshold{kind: controlRate, spread: 1}, streamOptions{rate: .3})
	}
	b.ReportMetric(float64(b.N)*float64(len(rows))/b.Elapsed().Seconds(), "decisions/s")
}

// A whole post-hoc decision: signals, calibration, policy, tracker.
func BenchmarkPostHoc(b *testing.B) {
	cal := &cascade.Calibration{Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}}
	tr := control.NewTracker(.3, 0)
	r, n := cascade.Request{}, cascade.Node{EdgeReady: true}
	var acc cascade.Accumulator
	for range 40 {
		acc.Add(-.02, 3)
	}
	b.ReportAllocs()
	for b.Loop() {
		pol := cascade.GainPolicy(tr.Theta(), .98)
		a := cascade.Answer{Signals: acc.Signals()}
		v := cascade.After(&r, &a, cal, &pol, &n)
		tr.Observe(v.Wanted)
	}
}
