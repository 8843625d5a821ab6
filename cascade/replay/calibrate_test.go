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

	"github.com/weirhq/weir/cascade"
)

// someModel is the fingerprint of no model.
const someModel = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

func answersFile(t *testing.T) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 9))
	var b strings.Builder
	for range 1000 {
		lp := []float64{-rng.ExpFloat64() * .3, -rng.ExpFloat64() * .3}
		p := math.Exp(lp[0] + lp[1])
		fmt.Fprintf(&b, `{"logprobs":[%f,%f],"edge_ok":%d,"cloud_ok":1}`+"\n", lp[0], lp[1], b2i(rng.Float64() < p))
	}
	path := filepath.Join(t.TempDir(), "answers.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCalibrateCommand(t *testing.T) {
	data := answersFile(t)
	out := filepath.Join(t.TempDir(), "c.json")
	code, _, errs := runCommand(t, "calibrate", "--data", data, "--model", "m", "--fingerprint", someModel, "--rate", "0.25", "--out", out)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	written, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cascade.ParseCalibration(written)
	if err != nil {
		t.Fatal(err)
	}
	if c.Model != "m" || c.Bind(someModel) != nil || c.CloudAccuracy != 1 || c.Samples != 1000 {
		t.Errorf("calibration %+v", c)
	}
	f, _ := os.Open(data)
	defer f.Close()
	answers, err := ReadAnswers(f)
	if err != nil {
		t.Fatal(err)
	}
	fit, err := Calibrate(answers, .25)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(fit.Escalated-.25) > .01 || fit.ECE > .06 || fit.Recovered < .4 || fit.AUROC < .6 {
		t.Errorf("fit %+v", fit)
	}
	code, text, _ := runCommand(t, "calibrate", "--data", data, "--model", "m", "--fingerprint", someModel, "--threshold", "0.5")
	var direct cascade.Calibration
	if err := json.Unmarshal([]byte(text), &direct); code != 0 || err != nil || direct.Threshold != .5 {
		t.Errorf("exit %d, %v, threshold %v", code, err, direct.Threshold)
	}
	for _, bad := range [][]string{
		{"calibrate"}, {"calibrate", "--data", data, "--model", "m", "--fingerprint", "zz"},
		{"calibrate", "--data", data, "--model", "m", "--fingerprint", someModel, "--rate", "1"},
		{"calibrate", "--data", data, "--model", "m", "--fingerprint", someModel, "--rate", "0.3", "--threshold", "0.5"},
		{"calibrate", "--data", data, "--model", "m", "--fingerprint", someModel, "--feature", "x"},
		{"calibrate", "--data", data, "--model", "m", "--fingerprint", someModel, "--label-kind", "x"},
		{"calibrate", "--data", data, "--model", "m", "--fingerprint", someModel, "--window", "0"},
	} {
		if code, _, _ := runCommand(t, bad...); code != 2 {
			t.Errorf("%v: exit %d, want 2", bad, code)
		}
	}
}

// Answers that are known token by token also tell how beginnings are judged;
// others do not, and the command says what that means.
func TestCalibrateBeginnings(t *testing.T) {
	var long, short strings.Builder
	for i := range 200 {
		right := i % 2
		lp := fmt.Sprintf("%g", -.01-.3*float64(1-right)*float64(1+i%3))
		fmt.Fprintf(&long, `{"logprobs":[%s],"edge_ok":%d}`+"\n", strings.TrimSuffix(strings.Repeat(lp+",", 20), ","), right)
		fmt.Fprintf(&short, `{"logprobs":[%s],"edge_ok":%d}`+"\n", lp, right)
	}
	for _, tt := range []struct {
		data   string
		prefix bool
	}{{long.String(), true}, {short.String(), false}} {
		file := filepath.Join(t.TempDir(), "answers.jsonl")
		if err := os.WriteFile(file, []byte(tt.data), 0o600); err != nil {
			t.Fatal(err)
		}
		code, text, errs := runCommand(t, "calibrate", "--data", file, "--model", "m", "--fingerprint", someModel, "--window", "16")
		c, err := cascade.ParseCalibration([]byte(text))
		if code != 0 || err != nil || (c.Prefix != nil) != tt.prefix || strings.Contains(errs, "held until they are whole") == tt.prefix {
			t.Fatalf("exit %d, %v, prefix %+v: %s", code, err, c.Prefix, errs)
		}
		if tt.prefix && (c.Prefix.Tokens != 16 || c.Prefix.WaitMS != 400) {
			t.Errorf("prefix %+v", c.Prefix)
		}
	}
}

func FuzzReadAnswers(f *testing.F) {
	f.Add([]byte(`{"logprobs":[-1,-2],"margins":[0.5],"edge_ok":1}`))
	f.Add([]byte(`{"logprobs":[null,NaN,-Infinity,-2],"margins":["nan"],"edge_ok":1}`))
	f.Add([]byte("tokens,sum_logprob,min_logprob,right\n3,-2,-1,0\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		answers, err := ReadAnswers(bytes.NewReader(data))
		if err != nil {
			return
		}
		if fit, err := Calibrate(answers, .3); err == nil && !(fit.Escalated >= 0 && fit.Escalated <= 1) {
			t.Fatalf("%+v", fit)
		}
	})
}

// Texts tell what is scored, and the calibration says so.
func TestCalibrateBySpans(t *testing.T) {
	var data strings.Builder
	for i := range 60 {
		fmt.Fprintf(&data, `{"logprobs":[-9,-9,-9,%g,-0.1],"texts":["<think>","hm","</think>","4",""],"edge_ok":%d}`+"\n", -.01*float64(1+i%7), i%2)
	}
	answers, err := ReadAnswers(strings.NewReader(data.String()))
	if err != nil {
		t.Fatal(err)
	}
	if a := answers[0]; a.Signals.Tokens != 2 || len(a.LogProbs) != 2 || a.Signals.Spans[cascade.SpanThink] != 3 {
		t.Errorf("%+v", a)
	}
	fit, err := Calibrate(answers, .3)
	if err != nil || fit.Calibration.Scored != cascade.ScoredAnswer {
		t.Errorf("scored %q, %v", fit.Calibration.Scored, err)
	}
	answers, err = ReadAnswers(strings.NewReader(`{"logprobs":[-9,-1,-9],"texts":["{\"a\":","1","}"],"form":"json","edge_ok":1}`))
	if err != nil || answers[0].Signals.SumLogProb != -1 {
		t.Errorf("JSON: %+v, %v", answers, err)
	}
	if _, err = ReadAnswers(strings.NewReader(`{"logprobs":[-9,-1],"texts":["a"],"edge_ok":1}`)); err == nil {
		t.Error("a text is missing")
	}
}

// A value that is missing is none of certainty: the answer has no usable signals,
// and the others of the file are read.
func TestMissingLogProbs(t *testing.T) {
	for name, data := range map[string]string{
		"lines": `{"logprobs":[null,-0.1],"edge_ok":1} {"logprobs":[NaN,-0.1],"edge_ok":1} {"logprobs":["nan",-0.1],"edge_ok":1} {"logprobs":[-0.2,-0.1],"margins":[null,0.5],"edge_ok":0}`,
		"CSV":   "logprobs,margins,edge_ok\n\"[null,-0.1]\",,1\n\"[NaN,-0.1]\",,1\n\"[-0.1,null]\",,1\n\"[-0.2,-0.1]\",\"[NaN,0.5]\",0\n",
	} {
		answers, err := ReadAnswers(strings.NewReader(data))
		if err != nil || len(answers) != 4 {
			t.Errorf("%s: %d answers, %v", name, len(answers), err)
			continue
		}
		for i, a := range answers {
			if a.Signals.Usable != (i == 3) || (a.LogProbs != nil) != (i == 3) || a.Signals.Tokens == 0 {
				t.Errorf("%s: answer %d: %+v", name, i, a.Signals)
			}
		}
		if s := answers[3].Signals; s.Margins != 1 || s.MeanMargin != .5 {
			t.Errorf("%s: margins %+v", name, s)
		}
	}
	for _, bad := range []string{`["x"]`, `[true]`, `[[1]]`, `[{}]`} {
		if _, err := ReadAnswers(strings.NewReader(`{"logprobs":` + bad + `,"edge_ok":1}`)); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
}

// What cannot be fitted is told with its cause.
func TestCalibrateTellsWhyNot(t *testing.T) {
	lines := func(line string) string { return strings.Repeat(line+"\n", 12) }
	for _, tt := range []struct{ data, feature, want string }{
		{lines(`{"logprobs":[-0.2,-0.1],"edge_ok":1}`) + lines(`{"logprobs":[-0.2,-0.1],"edge_ok":0}`), "margin", "24 lack the signal margin"},
		{lines(`{"logprobs":[0.5],"edge_ok":1}`), "product", "12 have no log-probabilities, or some that are missing or above 0"},
		{lines(`{"logprobs":[-0.5],"edge_ok":1}`), "product", "100 % of 12 are right"},
	} {
		file := filepath.Join(t.TempDir(), "answers.jsonl")
		if err := os.WriteFile(file, []byte(tt.data), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, errs := runCommand(t, "calibrate", "--data", file, "--model", "m", "--fingerprint", someModel, "--feature", tt.feature)
		if code != 1 || !strings.Contains(errs, tt.want) {
			t.Errorf("exit %d: %s, want %q", code, errs, tt.want)
		}
	}
}
