package replay

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	arena    = "global_index,dataset,q_chars,llama-3.1_score,GPT-4o_score,llama-3.1_usd,GPT-4o_usd"
	arenaRow = "\nx_1,AIME,9,0.5,1,0.1,0.2\nx_2,QA,8,-0.033,0,0.1,0.2\n"
	solved   = "idx,q_chars,ok_1b_ft,ok_1b_ver,ok_70b_ft,ok_70b_ver,ans_1b_ft,ans_1b_ver,ans_70b_ft,ans_70b_ver\n"
	unc      = "task,id,s_arg,s_p1,s_margin,s_ent,l_arg,l_p1,agree\nmmlu,0,0,.9,.8,.1,0,.9,1\ndrop,1,0,.5,.2,1,1,.9,0\n"
)

// Layouts are known by the pattern of their columns, whatever the models are
// called; columns of the documented format beside them are read too.
func TestLayouts(t *testing.T) {
	for name, c := range map[string]struct {
		in, file string
		cols     Columns
		sets     []string
	}{
		"two models' scores":      {arena + arenaRow, "f", Columns{}, []string{"routerarena/llama-3.1->GPT-4o"}},
		"by task, as asked":       {arena + arenaRow, "f", Columns{Task: "dataset"}, []string{"routerarena/llama-3.1->GPT-4o/AIME", "routerarena/llama-3.1->GPT-4o/QA", "routerarena/llama-3.1->GPT-4o"}},
		"named set":               {arena + arenaRow, "f", Columns{Set: "mine"}, []string{"mine"}},
		"scores named":            {arena + arenaRow, "f", Columns{Edge: "llama-3.1_score", Cloud: "GPT-4o_score"}, []string{"AIME", "QA", "pooled"}},
		"no data set":             {"a_score,b_score\n0,1\n", "f", Columns{}, []string{"f"}},
		"verifiers":               {solved + "0,9,1,1,0,1,5,5,6,7\n", "f", Columns{}, []string{"agree2/1b_ver->70b_ver"}},
		"two right or wrong":      {"ok_1b,ok_70b,task\n0,1,a\n", "f", Columns{}, []string{"a"}},
		"agreement":               {unc, "uncbench_Yi-6B_to_Yi-34B", Columns{}, []string{"unc/Yi-6B_to_Yi-34B/mmlu", "unc/Yi-6B_to_Yi-34B/drop", "unc/Yi-6B_to_Yi-34B"}},
		"agreement, short prefix": {unc, "unc_A_to_B", Columns{Task: "task"}, []string{"unc/A_to_B/mmlu", "unc/A_to_B/drop", "unc/A_to_B"}},
		"agreement, one signal":   {"agree,s_p1,task\n1,.5,a\n", "A_to_B", Columns{}, []string{"unc/A_to_B/a"}},
		"gold answers":            {"s_p1,s_ok,l_ok,task\n.5,0,1,a\n", "uncbench_A_to_B", Columns{}, []string{"unc/A_to_B/a"}},
		"benchmarks":              {"bench,subject,idx,weak_ok,strong_ok,prompt_chars\narc,s,0,0,1,5\ngpqa,s,1,1,1,5\n", "f", Columns{}, []string{"arc", "gpqa"}},
		"benchmarks' prompts":     {"bench,subject,idx,weak_ok,strong_ok,prompt\narc,s,0,0,1,what\n", "f", Columns{}, []string{"arc_subset"}},
		"two turns":               {"question_id,category,turn,weak_score,strong_score\n81,w,1,5,10\n", "f", Columns{}, []string{"mtbench"}},
		"another bench":           {"question_id,category,weak_score,strong_score\n81,w,5,10\n", "alpaca", Columns{}, []string{"alpaca"}},
	} {
		d, err := Read(strings.NewReader(c.in), c.file, c.cols)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := d.Sets(); !slices.Equal(got, c.sets) {
			t.Errorf("%s: sets %q, want %q", name, got, c.sets)
		}
		if r := d.Records[0]; !(r.Edge >= 0 && r.Edge <= 1 && r.Cloud == 1) {
			t.Errorf("%s: edge %v, cloud %v", name, r.Edge, r.Cloud)
		}
	}
}

func TestLayoutsReadMore(t *testing.T) {
	read := func(in string, cols Columns) *Data {
		t.Helper()
		d, err := Read(strings.NewReader(in), "f", cols)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	// The documented format takes the same scores, a little below zero too.
	for _, cols := range []Columns{{}, {Edge: "llama-3.1_score", Cloud: "GPT-4o_score"}} {
		if d := read(arena+arenaRow, cols); d.Records[1].Edge != -.033 || len(d.Records) != 2 {
			t.Errorf("%+v", d.Records)
		}
	}
	if r := read(arena+arenaRow, Columns{}).Records[0]; r.EdgeCost != .1 || r.CloudCost != .2 || r.Chars != 9 || r.Cell != "AIME" || r.ID != "x_1" {
		t.Errorf("%+v", r)
	}
	d := read("bench,subject,idx,weak_ok,strong_ok,prompt_chars,confidence,split,edge_cost,cloud_cost\narc,s,0,0,1,5,.3,train,1,2\narc,s,1,1,1,5,.7,test,1,2\n", Columns{})
	if r := d.Records[0]; r.Signals[SignalConfidence] != .3 || r.EdgeCost != 1 || r.CloudCost != 2 || r.Cell != "s" || !d.HasSplit() {
		t.Errorf("%+v", r)
	}
	d = read(solved+"0,9,1,1,0,1,5,5,6,7\n1,9,0,1,0,0,5,6,6,7\n", Columns{})
	if a, b := d.Records[0], d.Records[1]; a.Signals[SignalAgree] != 1 || b.Signals[SignalAgree] != 0 || b.Edge != 1 || b.Cloud != 0 {
		t.Errorf("%+v, %+v", a, b)
	}
	if d = read(unc, Columns{Confidence: "l_p1"}); !d.Agreement || d.Records[1].Signals[SignalConfidence] != .9 || d.Records[1].Edge != 0 {
		t.Errorf("%+v", d.Records)
	}
	// The order of a JSON object's members tells the tiers apart.
	if d = read(`{"dataset":"a","z_score":0,"a_score":1}`, Columns{}); d.Sets()[0] != "routerarena/z->a" || len(d.Notes) != 1 {
		t.Errorf("sets %q, notes %q", d.Sets(), d.Notes)
	}
	// Words where numbers are usual are not read.
	if d = read("edge,cloud,latency\n0,1,fast\n", Columns{}); !math.IsNaN(d.Records[0].CloudMS) || len(d.Notes) != 1 {
		t.Errorf("%+v, notes %q", d.Records, d.Notes)
	}
}

func TestSeveralModels(t *testing.T) {
	_, err := Read(strings.NewReader("a_score,b_score,c_score\n0,1,1\n"), "f", Columns{})
	if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "a_score, b_score, c_score") || !strings.Contains(err.Error(), "--edge and --cloud") {
		t.Errorf("%v", err)
	}
	long := strings.Repeat("c,", 900)
	for i := range 900 {
		long = strings.Replace(long, "c,", fmt.Sprintf("%s%d;", strings.Repeat("x", 60), i), 1)
	}
	if _, err := Read(strings.NewReader(strings.TrimSuffix(long, ";")+"\n"+strings.Repeat(";", 899)+"\n"), "f", Columns{}); err == nil || len(err.Error()) > 2000 {
		t.Errorf("an error of %d bytes", len(fmt.Sprint(err)))
	}
}

func TestZip(t *testing.T) {
	pack := func(files ...string) string {
		var b bytes.Buffer
		zw := zip.NewWriter(&b)
		for _, f := range files {
			w, err := zw.Create(f)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(f, "/") { // of a folder
				fmt.Fprint(w, unc)
			}
		}
		if err := zw.Close(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	file := filepath.Join(t.TempDir(), "uncbench_A_to_B.CSV.zip")
	if err := os.WriteFile(file, []byte(pack("x.csv")), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runCommand(t, "eval", "--data", file, "--policy", " p1 , oracle", "--bootstrap", "0", "--json")
	if code != 0 || !strings.Contains(out, `"unc/A_to_B/mmlu"`) {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	for _, in := range []string{pack(), pack("a", "b"), pack("a")[:40], pack("d/"), pack("__MACOSX/._a"), pack("a", "b", "__MACOSX/._a")} {
		if _, err := Read(strings.NewReader(in), "f", Columns{}); err == nil {
			t.Error("an archive without one file is accepted")
		}
	}
	for _, in := range []string{pack("x.csv", "__MACOSX/._x.csv"), pack("d/", "d/.DS_Store", "d/x.csv", "__MACOSX/d/._x.csv"), pack("._x.csv", "x.csv")} {
		if d, err := Read(strings.NewReader(in), "f", Columns{}); err != nil || len(d.Records) == 0 {
			t.Errorf("an archive as macOS packs one: %v", err)
		}
	}
}
