package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scoredCSV has answers of pools a and b, and of c, which is there for every second
// request. The better pool got the hard ones, so that plain means tell the opposite.
func scoredCSV(n int) (csv []byte, truth map[string]float64) {
	rng := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	b.WriteString("answered_at,tenant_id,operation_id,model,class,pool,propensity,score,kind\n")
	quality := map[string]float64{"a": .5, "b": .6, "c": .7} // of a middling request
	for i := range n {
		hard := .3 * float64(i%2)
		p := map[string]float64{"a": .8, "b": .2}
		if i%2 == 1 {
			p = map[string]float64{"a": .1, "b": .9}
		}
		if i%4 < 2 {
			p = map[string]float64{"a": p["a"] / 2, "b": p["b"] / 2, "c": .5}
		}
		u, pool := rng.Float64(), ""
		for _, pool = range []string{"a", "b", "c"} {
			if u -= p[pool]; u < 0 {
				break
			}
		}
		score := 0
		if rng.Float64() < quality[pool]+.15-hard {
			score = 1
		}
		fmt.Fprintf(&b, "2026-11-30T09:00:00Z,t,o%d,auto,standard,%s,%v,%d,%s\n", i, pool, p[pool], score, []string{"feedback", "validator"}[i%2])
	}
	for i := range 10 { // of a session, and stand-ins
		fmt.Fprintf(&b, "2026-11-30T09:00:00Z,t,s%d,auto,standard,a,%d,1,feedback\n", i, i%2)
	}
	b.WriteString("2026-11-30T09:00:00Z,t,z,any,,b,0.25,0.5,feedback\n")
	return b.Bytes(), quality
}

// The value of always each pool comes out although the pools had different requests.
func TestScoredAnswers(t *testing.T) {
	csv, quality := scoredCSV(20_000)
	file := filepath.Join(t.TempDir(), "answers.csv")
	if err := os.WriteFile(file, csv, 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := OpenScored(file)
	if err != nil || len(all) != 2 || all[0].Model != "any" || all[0].Class != "" {
		t.Fatalf("%v, %+v", err, all)
	}
	s := all[1]
	if s.Answers != 20_000 || s.Without != 10 || s.Kinds["feedback"] != 10_000 || s.Kinds["validator"] != 10_000 || len(s.Pools) != 3 {
		t.Fatalf("%+v", s)
	}
	for _, p := range s.Pools {
		weight, off := float64(p.Weight), math.Abs(float64(p.SNIPS)-quality[p.Pool])
		if se := float64(p.SE); off > 4*se || se > .02 || p.Effective <= 0 || float64(p.Effective) > float64(p.Answers) {
			t.Errorf("%s: %+v, want %v", p.Pool, p, quality[p.Pool])
		}
		want := 1.0
		if p.Pool == "c" {
			want = .5 // there for every second
		}
		if math.Abs(weight-want) > .05 || math.Abs(float64(p.IPS)-weight*float64(p.SNIPS)) > 1e-9 {
			t.Errorf("%s: weight %v, want %v, %+v", p.Pool, weight, want, p)
		}
	}
	plain := func(pool string) float64 {
		sum, n := 0.0, 0.0
		for _, a := range s.list {
			if a.pool == pool {
				sum, n = sum+a.score, n+1
			}
		}
		return sum / n
	}
	if plain("a") < plain("b") {
		t.Errorf("the plain means are right by themselves: %v, %v", plain("a"), plain("b"))
	}
	if one := all[0].Pools[0]; one.SNIPS != .5 || one.IPS != 2 || one.SE != 0 || one.Effective != 1 {
		t.Errorf("%+v", one)
	}
}

func TestEvalAnswers(t *testing.T) {
	csv, _ := scoredCSV(100)
	file := filepath.Join(t.TempDir(), "answers.csv")
	if err := os.WriteFile(file, csv, 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runCommand(t, "eval", "--answers", file)
	if code != 0 || !strings.Contains(out, "(as chosen)") || !strings.Contains(out, "auto standard: 100 scored answers, 50 by feedback, 50 by validator; 10 more had no choice") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	code, out, errs = runCommand(t, "eval", "--answers", file, "--json")
	if code != 0 || !json.Valid([]byte(out)) {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	for text, want := range map[string]string{"pool,score\na,1\n": "propensity", "model,class,pool,propensity,score\nauto,s,a,2,1\n": "row 1", "": "empty",
		"model,class,pool,propensity,score\nauto,s,a,0.5,\n": "row 1"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := runCommand(t, "eval", "--answers", file); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%q: exit %d: %s", text, code, errs)
		}
	}
}

func FuzzScored(f *testing.F) {
	csv, _ := scoredCSV(4)
	f.Add(csv)
	f.Add([]byte(`{"model":"a","class":"b","pool":"c","propensity":0.5,"score":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := readTable(bytes.NewReader(data))
		if err != nil {
			return
		}
		all, err := readScored(table)
		if err != nil {
			return
		}
		n := 0
		for _, s := range all {
			n += s.Answers + s.Without
		}
		if n != len(table.rows) {
			t.Fatalf("%d answers of %d rows", n, len(table.rows))
		}
		if err := writeScored(&bytes.Buffer{}, all, true); err != nil {
			t.Fatal(err)
		}
	})
}
