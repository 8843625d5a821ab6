// Package sample chooses the next token from a row of logits. It is pure: the
// only randomness is a generator that the request's seed starts, so the same
// seed over the same logits gives the same tokens. No call allocates once its
// Scratch has grown to the vocabulary.
package sample

import (
	"math"
	"math/rand/v2"

	"github.com/weirhq/weir/engine"
)

// Params are a request's sampling settings. The zero value is greedy.
//
// The filters have vLLM's meaning: temperature, then min_p, top_k and top_p over
// what is left. A filter's neutral value turns it off. top_k is applied first:
// temperature keeps the order and min_p looks at the best alone, so the result
// is the same, and a large vocabulary costs only k exponentials.
type Params struct {
	Temperature float64 // 0 is greedy
	TopK        int     // keep the k most likely; 0 or less is off
	TopP        float64 // keep the most likely that together reach p; 0 or >= 1 is off
	MinP        float64 // drop what is less likely than MinP times the best; 0 is off
	Seed        uint64
}

// Sampler is one request's choice of tokens. Not safe for concurrent use.
type Sampler struct {
	p   Params
	rng rand.PCG
}

// New returns a Sampler at the start of its random sequence.
func New(p Params) *Sampler {
	s := &Sampler{p: p}
	// The second word only has to be fixed; it is the golden ratio's fraction.
	s.rng.Seed(p.Seed, 0x9e3779b97f4a7c15)
	return s
}

// Skip passes over the random numbers of n tokens that were chosen elsewhere.
func (s *Sampler) Skip(n int) {
	for range n {
		s.rng.Uint64()
	}
}

// Scratch is working memory that samplers of one goroutine share.
type Scratch struct {
	cand []candidate
}

type candidate struct {
	weight float64 // a logit, then exp((logit - max) / temperature)
	token  engine.Token
}

// Next chooses a token. ok is false when the row holds no finite logit: the
// model is broken and the request cannot go on.
func (s *Sampler) Next(logits []float32, sc *Scratch) (t engine.Token, ok bool) {
	best, ok := Greedy(logits)
	if !ok || s.p.Temperature <= 0 || s.p.TopK == 1 {
		return best, ok
	}
	cand := sc.cand[:0]
	if k := s.p.TopK; k > 0 && k < len(logits) {
		cand = topLogits(cand, logits, k)
	} else {
		for i, x := range logits {
			cand = append(cand, candidate{float64(x), engine.Token(i)})
		}
	}
	sc.cand = cand // keeps what it grew to
	cand, total := s.weigh(cand, float64(logits[best]))
	if p := s.p.TopP; p > 0 && p < 1 {
		cand, total = topP(cand, total, p)
	}
	return draw(cand, s.uniform()*total), true
}

// negligible is how far below the best, in units of temperature, a logit is
// left out: exp(-40) times any vocabulary is beyond a float64 sum's precision.
const negligible = -40

// weigh turns logits into weights relative to the best and drops those below
// min_p. It works in place; the order stays.
func (s *Sampler) weigh(cand []candidate, best float64) ([]candidate, float64) {
	inv := 1 / s.p.Temperature
	floor := float64(negligible)
	if s.p.MinP > 0 {
		floor = max(floor, math.Log(s.p.MinP))
	}
	n, total := 0, 0.0
	for _, c := range cand {
		if d := (c.weight - best) * inv; d >= floor { // false for NaN
			cand[n] = candidate{math.Exp(d), c.token}
			total += cand[n].weight
			n++
		}
	}
	return cand[:n], total
}

func (s *Sampler) uniform() float64 { return float64(s.rng.Uint64()>>11) / (1 << 53) }

// draw returns the candidate in which the running sum passes u.
func draw(cand []candidate, u float64) engine.Token {
	for _, c := range cand {
		if u -= c.weight; u < 0 {
			return c.token
		}
	}
	return cand[len(cand)-1].token // rounding left a crumb of u
}

// Greedy returns the most likely token, the lowest of equals. ok is false when
// no logit is finite.
func Greedy(logits []float32) (t engine.Token, ok bool) {
	best, at := float32(math.Inf(-1)), -1
	for i, x := range logits {
		if x > best { // false for NaN
			best, at = x, i
		}
	}
	if at < 0 || math.IsInf(float64(best), 1) {
		return 0, false
	}
	return engine.Token(at), true
}
