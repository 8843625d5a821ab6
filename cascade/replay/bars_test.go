package replay

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/measure"
)

// sharedFile finds a file of the shared evaluation data, a sibling of the
// repository, or skips the test.
func sharedFile(tb testing.TB, name string) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			path := filepath.Join(dir, "..", "shared", "data", "cascade", name)
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	tb.Skipf("evaluation data %s is not beside the repository", name)
	return ""
}

var opened = map[string]*Data{}

// openShared reads a file once for all tests, which run one after another and
// do not change it.
func openShared(tb testing.TB, name string) *Data {
	tb.Helper()
	if d := opened[name]; d != nil {
		return d
	}
	d, err := Open(sharedFile(tb, name), Columns{})
	if err != nil {
		tb.Fatal(err)
	}
	opened[name] = d
	return d
}

var evaluated = map[string]*Result{}

// evalUnc evaluates one of the two stream files once for all tests.
func evalUnc(tb testing.TB, file string) *Result {
	tb.Helper()
	if r := evaluated[file]; r != nil {
		return r
	}
	d := *openShared(tb, file)
	d.Pool = "" // as large as all other sets together
	o := DefaultOptions()
	o.Policies, o.Bootstrap = []string{"margin", "p1", "negent", "gain"}, 0
	res, err := Evaluate(&d, o)
	if err != nil {
		tb.Fatal(err)
	}
	evaluated[file] = res
	return res
}

const (
	qwen  = "uncbench_Qwen-1_8B_to_Qwen-72B.csv.gz"
	llama = "uncbench_Llama-2-7b-hf_to_Llama-2-70b-hf.csv.gz"
)

// Metrics agree with an independent implementation within .002.
func TestMetricParity(t *testing.T) {
	data, err := os.ReadFile(sharedFile(t, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]map[string]any
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	checked := 0
	check := func(key string, m Metrics) {
		checked++
		for name, got := range map[string]float64{"apgr": m.APGR, "auc": m.AUC, "cpt50": m.CPT50, "cpt80": m.CPT80,
			"cpt95": m.CPT95, "auroc_edge_ok": m.AUROCEdge, "auroc_benefit": m.AUROCHelps} {
			if w, ok := want[key][name].(float64); !ok || math.Abs(got-w) > .002 {
				t.Errorf("%s %s is %.4f, want %v", key, name, got, want[key][name])
			}
		}
	}
	eval := func(file string, names ...string) *Result {
		o := DefaultOptions()
		o.Policies, o.Bootstrap = names, 0
		res, err := Evaluate(openShared(t, file), o)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for _, file := range []string{qwen, llama} {
		for _, s := range evalUnc(t, file).Sets {
			for _, name := range []string{"margin", "p1", "negent"} {
				check(s.Name+"/"+name, s.Policies[name])
			}
		}
	}
	for _, s := range eval("routellm_outcomes.csv", "length", "oracle").Sets {
		check("router_len/"+s.Name, s.Policies["length"])
		check("router_oracle/"+s.Name, s.Policies["oracle"])
	}
	s := eval("openai_gsm8k_6b_175b.csv", "agree", "oracle").Sets[0]
	check(s.Name, s.Policies["agree"])
	check("agree2_oracle", s.Policies["oracle"])
	s = eval("routerarena_sub10.csv", "length", "oracle").Sets[0]
	check(s.Name+"/len", s.Policies["length"])
	check("routerarena/oracle", s.Policies["oracle"])
	if checked != 38 {
		t.Errorf("%d entries checked, want 38", checked)
	}
}

// The rate tracker holds 30 % in every block of 10,000 and every window of
// 1,000, across five changes of task.
func TestRateControl(t *testing.T) {
	for _, file := range []string{qwen, llama} {
		for policy, st := range evalUnc(t, file).Streams {
			for set, r := range st.BySet {
				if math.Abs(r.Rate-.30) > .002 {
					t.Errorf("%s: rate of %s %.4f", set, policy, r.Rate)
				}
			}
			if st.WorstWindow > .02 || len(st.BySet) != 5 {
				t.Errorf("%s: worst window of %s %.4f off", file, policy, st.WorstWindow)
			}
		}
	}
}

// With labels only of escalated answers and of 5 % of the kept ones, the
// calibration of CosmosQA/Llama is within .07, far better than without.
func TestPartialFeedback(t *testing.T) {
	d := openShared(t, llama)
	without, with := partialECE(d, "cosmosqa_10k", 0, 1), 0.0
	for seed := range uint64(5) {
		e := partialECE(d, "cosmosqa_10k", .05, seed)
		with += e / 5
		if e > .07 {
			t.Errorf("seed %d: ECE %.3f with 5 %% shadow labels", seed, e)
		}
	}
	t.Logf("ECE %.3f with 5 %% shadow labels, %.3f without", with, without)
	if without < 2*with {
		t.Errorf("ECE %.3f with shadow labels, %.3f without: they change nothing", with, without)
	}
}

func partialECE(d *Data, cell string, share float64, seed uint64) float64 {
	rng := rand.New(rand.NewPCG(seed, 4))
	c := learn.NewCell(learn.DefaultOptions(), cascade.Logistic{W: []float64{1}})
	tracker := control.NewTracker(.3, -.5)
	var p, y []float64
	for i := range d.Records {
		r := &d.Records[i]
		if r.Cell != cell {
			continue
		}
		x := []float64{cascade.Phi(math.Log(r.Signals[SignalP1]))}
		pe := c.P(x)
		p, y = append(p, pe), append(y, r.Edge)
		escalated := tracker.Decide(-pe)
		if escalated || rng.Float64() < share {
			c.Observe(x, r.Edge, learn.Propensity(escalated, share), true)
		}
	}
	return measure.ECE(measure.Reliability(p, y, nil, 10))
}

// The prompt alone: the subject prior reaches .670 on MMLU, hashed words .60
// on the subset with texts.
func TestPromptOnly(t *testing.T) {
	o := DefaultOptions()
	o.Policies, o.Bootstrap = []string{"subject-prior", "hashed"}, 0
	for seed := range uint64(2) {
		o.Seed = seed
		res, err := Evaluate(openShared(t, "routellm_outcomes.csv"), o)
		if err != nil {
			t.Fatal(err)
		}
		subject := res.Sets[0].Policies["subject-prior"].APGR
		if subject < .670 {
			t.Errorf("seed %d: subject prior has APGR %.4f on MMLU", seed, subject)
		}
		res, err = Evaluate(openShared(t, "routellm_prompts.jsonl"), o)
		if err != nil {
			t.Fatal(err)
		}
		hashed := res.Sets[0].Policies["hashed"].APGR
		t.Logf("APGR by subject %.4f, by hashed words %.4f", subject, hashed)
		if hashed < .60 {
			t.Errorf("seed %d: hashed words have APGR %.4f on the MMLU subset", seed, hashed)
		}
	}
}

func TestViabilityRejectsHopelessSets(t *testing.T) {
	res, err := Evaluate(openShared(t, "bouchard_voi_summary.csv"), DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	usable := map[string]bool{}
	for _, v := range res.Summary {
		usable[v.Set] = v.Grade == learn.GradeUsable
	}
	for set, want := range map[string]bool{"simpleqa": false, "livecodebench": false, "math_hard": false, "triviaqa": true} {
		if usable[set] != want {
			t.Errorf("%s usable: %v, want %v", set, usable[set], want)
		}
	}
}
