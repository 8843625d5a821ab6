package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/verifier"
)

// voted are n rows whose confidence tells little and whose votes tell as much as
// told says, 0 to 1.
func voted(n int, told float64, split bool) string {
	rng := rand.New(rand.NewPCG(3, 4))
	var b strings.Builder
	b.WriteString("confidence,edge_ok,cloud_ok,votes,split\n")
	for i := range n {
		edge, conf, votes := b2i(rng.Float64() < .6), .3+.4*rng.Float64(), rng.IntN(6)
		if rng.Float64() < told {
			votes = 4*edge + rng.IntN(2)
		}
		part := ""
		if split {
			part = []string{"train", "test"}[i%2]
		}
		fmt.Fprintf(&b, "%g,%d,%d,%d,%s\n", conf+.05*float64(edge), edge, b2i(rng.Float64() < .9), votes, part)
	}
	return b.String()
}

// Votes that tell improve the order and the calibration, on rows that the table
// has not seen; votes that do not are not used, and the reader is told.
func TestPOMDP(t *testing.T) {
	for _, split := range []bool{true, false} {
		for _, told := range []float64{.8, 0} {
			d, err := Read(strings.NewReader(voted(2000, told, split)), "f", Columns{})
			if err != nil {
				t.Fatal(err)
			}
			o := DefaultOptions()
			o.Policies, o.Bootstrap = []string{"gain", "pomdp"}, 0
			res, err := Evaluate(d, o)
			if err != nil {
				t.Fatal(err)
			}
			gain, pomdp := res.Sets[0].Policies["gain"], res.Sets[0].Policies["pomdp"]
			notes := strings.Join(res.Notes, "\n")
			if told == 0 {
				if gain.APGR != pomdp.APGR || gain.ECE != pomdp.ECE || !strings.Contains(notes, "pomdp decides as gain") {
					t.Errorf("split %v: votes that tell nothing change %v to %v; notes %q", split, gain.APGR, pomdp.APGR, notes)
				}
				continue
			}
			if pomdp.APGR < gain.APGR+.1 || pomdp.ECE > .06 || strings.Contains(notes, "pomdp") {
				t.Errorf("split %v: APGR %v, gain %v, ECE %v, notes %q", split, pomdp.APGR, gain.APGR, pomdp.ECE, notes)
			}
		}
	}
	d, err := Read(strings.NewReader("confidence,edge_ok,cloud_ok\n.5,1,1\n"), "f", Columns{})
	if err != nil {
		t.Fatal(err)
	}
	_, all := sets(d, 1)
	if _, err := scorePOMDP(all[0]); err == nil || !strings.Contains(err.Error(), "--votes") {
		t.Errorf("without votes: %v", err)
	}
	for _, bad := range []string{"11", "-1", "2.5"} {
		d, err := Read(strings.NewReader("confidence,edge_ok,cloud_ok,votes\n.5,1,1,"+bad+"\n"), "f", Columns{})
		if err != nil || !math.IsNaN(d.Records[0].Votes) {
			t.Errorf("%s votes are read: %v", bad, err)
		}
	}
}

// The command fits a verifier of labelled votes, and says how good it is.
func TestCalibrateVerifier(t *testing.T) {
	for _, tt := range []struct {
		told  float64
		grade learn.Grade
	}{{1, learn.GradeUsable}, {0, learn.GradeUnusable}} {
		rng := rand.New(rand.NewPCG(1, 2))
		var b strings.Builder
		for i := range 600 {
			edge, votes := i%2, rng.IntN(4)
			if rng.Float64() < tt.told {
				votes = 2*edge + rng.IntN(2)
			}
			fmt.Fprintf(&b, `{"logprobs":[%g],"edge_ok":%d,"cloud_ok":1,"votes":%d}`+"\n", -rng.ExpFloat64()*(2-float64(edge)), edge, votes)
		}
		fmt.Fprintln(&b, `{"logprobs":[-1],"edge_ok":1,"cloud_ok":1}`) // was not asked
		data := filepath.Join(t.TempDir(), "answers.jsonl")
		if err := os.WriteFile(data, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"calibrate", "--data", data, "--model", "m", "--fingerprint", someModel}
		code, text, errs := runCommand(t, append(args, "--verify-samples", "3")...)
		c, err := cascade.ParseCalibration([]byte(text))
		if code != 0 || err != nil || c.Verifier == nil || c.Verifier.Labels() != 600 || !strings.Contains(errs, "votes of 600 answers: "+string(tt.grade)) {
			t.Errorf("exit %d, %v: %s", code, err, errs)
		}
		if _, text, _ = runCommand(t, append(args, "--verify-samples", "3", "--verify-sampled")...); !strings.Contains(text, `"sampled": true`) && !strings.Contains(text, `"sampled":true`) {
			t.Errorf("votes of samples: %s", text)
		}
		if code, text, _ := runCommand(t, args...); code != 0 || strings.Contains(text, "verifier") {
			t.Errorf("without being asked: exit %d, %s", code, text)
		}
		if code, _, errs := runCommand(t, append(args, "--verify-samples", "2")...); code != 1 || !strings.Contains(errs, "votes is 3") {
			t.Errorf("too few samples: exit %d: %s", code, errs)
		}
		if code, _, _ := runCommand(t, append(args, "--verify-samples", "11")...); code != 2 {
			t.Errorf("too many samples: exit %d", code)
		}
	}
	if _, err := CalibrateVerifier([]LabelledAnswer{{Votes: math.NaN()}}, verifier.Votes{Of: 3}); err == nil {
		t.Error("a verifier of no votes")
	}
}
