package sample

import (
	"math"

	"github.com/weirhq/weir/engine"
)

// Logprob is a token with its natural log-probability under the model, before
// temperature and filters (vLLM's raw_logprobs): what a confidence is made of.
type Logprob struct {
	Token   engine.Token
	Logprob float32
}

// LogSumExp is the logarithm of the sum of the exponentials of a row: the
// log-probability of token t is logits[t] minus it. The sum runs in float64.
func LogSumExp(logits []float32) float64 {
	best, ok := Greedy(logits)
	if !ok {
		return math.NaN()
	}
	top := float64(logits[best])
	sum := 0.0
	for _, x := range logits {
		if d := float64(x) - top; d > negligible {
			sum += math.Exp(d)
		}
	}
	return top + math.Log(sum)
}

// Top appends the n most likely tokens of a row, the most likely first, to dst.
// lse is the row's LogSumExp. It is meant for small n (the API allows 20).
func Top(dst []Logprob, logits []float32, lse float64, n int) []Logprob {
	base := len(dst)
	for i, x := range logits {
		if x != x || len(dst)-base == n && (n == 0 || x <= dst[len(dst)-1].Logprob) {
			continue
		}
		if len(dst)-base < n {
			dst = append(dst, Logprob{})
		}
		at := len(dst) - 1
		for ; at > base && x > dst[at-1].Logprob; at-- {
			dst[at] = dst[at-1]
		}
		dst[at] = Logprob{engine.Token(i), x}
	}
	for i := range dst[base:] {
		dst[base+i].Logprob = float32(float64(dst[base+i].Logprob) - lse)
	}
	return dst
}
