package poolse2e

import (
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// pick is a token of an answer with its log-probability and those of the two
// best.
type pick struct {
	Bytes   []int
	Logprob float64
	Top     []struct {
		Bytes   []int
		Logprob float64
	} `json:"top_logprobs"`
}

// tie is how far apart the two best logits may lie where answers part: kernels
// round differently for other shapes of a batch.
const tie = 1e-3

// tied reports whether either of the two best may be picked.
func (p pick) tied() bool { return len(p.Top) == 2 && p.Top[0].Logprob-p.Top[1].Logprob <= tie }

// shift is what other shapes of a batch may move the logits of a bundled model on
// llama.cpp by after text like its training's: four times what was measured.
const shift = 0.02

// close reports an answer with a choice that may fall otherwise for that, and is no
// tie: nobody can tell what it is under load.
func (a answer) close() bool {
	return slices.ContainsFunc(a.picks, func(p pick) bool { return !p.tied() && len(p.Top) == 2 && p.Top[0].Logprob-p.Top[1].Logprob <= shift })
}

// sameOrTied wants the tokens of alone, an undisturbed answer, up to a tie at
// which got goes on with the other one. It returns whether they are all the same.
func sameOrTied(t *testing.T, what string, got, alone []pick) bool {
	t.Helper()
	for i := range min(len(got), len(alone)) {
		if slices.Equal(got[i].Bytes, alone[i].Bytes) {
			continue
		}
		if !alone[i].tied() || !slices.Equal(got[i].Bytes, alone[i].Top[1].Bytes) {
			t.Errorf("%s: token %d is %+v, undisturbed %+v", what, i, got[i], alone[i])
		}
		return false
	}
	if len(got) != len(alone) {
		t.Errorf("%s: %d tokens, undisturbed %d", what, len(got), len(alone))
	}
	return true
}

// sameTextOrTied is sameOrTied of an answer whose text alone is known. A token is a
// byte or less.
func sameTextOrTied(t *testing.T, what, text string, alone []pick) bool {
	t.Helper()
	var want []byte
	for i, p := range alone {
		for _, b := range p.Bytes {
			want = append(want, byte(b))
		}
		shown := strings.TrimRight(string([]rune(string(want))), "\uFFFD") // its end may be half a character
		if strings.HasPrefix(text, shown) {
			continue
		}
		if !slices.ContainsFunc(alone[max(0, i-utf8.UTFMax):i+1], pick.tied) { // the bytes of a character are shown together
			t.Errorf("%s: parts at token %d, where the undisturbed answer has %+v", what, i, p)
		}
		return false
	}
	return true
}

// sameBits wants the same tokens with the same log-probabilities.
func sameBits(t *testing.T, what string, got, alone []pick) {
	t.Helper()
	if !sameOrTied(t, what, got, alone) {
		t.Errorf("%s: not the undisturbed answer", what)
		return
	}
	for i := range got {
		if math.Float64bits(got[i].Logprob) != math.Float64bits(alone[i].Logprob) {
			t.Errorf("%s: token %d has %v, undisturbed %v", what, i, got[i].Logprob, alone[i].Logprob)
			return
		}
	}
}
