package tiers

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/weirhq/weir/cascade/learn"
)

// telling is a verifier of three votes whose word is worth something: right
// answers get two or three, wrong ones none or one.
func telling() *Verifier {
	v := NewVerifier(3)
	for i := range 100 {
		v.Observe(BothRight, 2+i%2, 1)
		v.Observe(OnlyCloud, i%2, 1)
		v.Observe(BothWrong, i%2, .5)
	}
	return v
}

// Votes move what is expected of the edge, and never beyond what is possible;
// without labels they move nothing.
func TestJudge(t *testing.T) {
	v := telling()
	yes, cloud := v.Judge(.6, .9, 3)
	no, _ := v.Judge(.6, .9, 0)
	if yes < .95 || no > .1 || cloud < .89 {
		t.Errorf("after yes %v (cloud %v), after no %v", yes, cloud, no)
	}
	if e, c := NewVerifier(3).Judge(.6, .9, 3); math.Abs(e-.6) > 1e-9 || math.Abs(c-.9) > 1e-9 {
		t.Errorf("without labels %v %v", e, c)
	}
	if e, c := v.Judge(1, 1, 0); e != 1 || c != 1 {
		t.Errorf("what is certain moves: %v %v", e, c)
	}
	for _, p := range []float64{0, .3, 1} {
		for yes := -1; yes < 5; yes++ {
			if e, c := v.Judge(p, p, yes); !(e >= 0 && e <= 1+1e-12 && c >= 0 && c <= 1+1e-12) {
				t.Errorf("%v, %d votes: %v %v", p, yes, e, c)
			}
		}
	}
}

func TestViable(t *testing.T) {
	if g := telling().Viable(); g != learn.GradeUsable {
		t.Errorf("a telling verifier is %s", g)
	}
	noise := NewVerifier(3)
	for i := range 200 { // votes that know nothing
		noise.Observe(BothRight, i%4, 1)
		noise.Observe(OnlyCloud, i%4, 1)
	}
	if g := noise.Viable(); g != learn.GradeUnusable {
		t.Errorf("noise is %s", g)
	}
	if g := NewVerifier(3).Viable(); g != learn.GradeUnknown {
		t.Errorf("without labels it is %s", g)
	}
}

func TestTable(t *testing.T) {
	raw, err := json.Marshal(telling())
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ParseVerifier(raw); err != nil || !reflect.DeepEqual(back, telling()) {
		t.Errorf("%v: %s", err, raw)
	}
	for _, bad := range []string{``, `{}`, `{"votes":0,"counts":[]}`, `{"votes":11,"counts":[[],[],[],[]]}`, `{"votes":1,"counts":[[0,0],[0,0],[0,0]]}`,
		`{"votes":1,"counts":[[0,0],[0,0],[0,0],[0]]}`, `{"votes":1,"counts":[[0,0],[0,0],[0,0],[0,-1]]}`, `{"votes":1,"counts":[[0,0],[0,0],[0,0],[0,0]],"x":1}`,
		`{"votes":1,"counts":[[0,0],[0,0],[0,0],[0,0]]} x`} {
		if _, err := ParseVerifier([]byte(bad)); !errors.Is(err, ErrVerifier) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzParseVerifier(f *testing.F) {
	raw, _ := json.Marshal(telling())
	f.Add(raw)
	f.Add([]byte(`{"votes":1,"counts":[[1e5,0],[0,0],[0,0],[0,0]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := ParseVerifier(data)
		if err != nil {
			return
		}
		if e, c := v.Judge(.5, .5, 1); !(e >= 0 && e <= 1+1e-9 && c >= 0 && c <= 1+1e-9) {
			t.Errorf("%v %v", e, c)
		}
	})
}
