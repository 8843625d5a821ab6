// Package enginetest is the conformance suite of engine.Runner: what the batch
// loop relies on, tested the same way for every implementation.
package enginetest

import (
	"math"
	"testing"

	"github.com/weirhq/weir/engine"
)

// Limits are the sizes a test needs its runner to have. Zero leaves the choice
// to the implementation.
type Limits struct {
	MaxSeqs, Context, MaxBatch, KVTokens int
}

// New makes a runner of the same weights on each call and closes it at the end
// of the test. It skips the test where a limit cannot be set.
type New func(t *testing.T, l Limits) engine.Runner

// Suite is what is run against an implementation.
type Suite struct {
	Open New
	// Exact says that a sequence gives the same bits wherever its KV lies, so
	// that moved KV continues bit for bit. Otherwise it continues closely.
	Exact bool
}

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	tests := []struct {
		name string
		run  func(Suite, *testing.T)
	}{
		{"info", Suite.testInfo},
		{"text", Suite.testText},
		{"step rows", Suite.testStepRows},
		{"closeness tells prompts apart", Suite.testDistance},
		{"batch agrees with alone", Suite.testBatchAgrees},
		{"chunks agree with whole", Suite.testChunksAgree},
		{"step refuses", Suite.testStepRefuses},
		{"step is stopped", Suite.testStop},
		{"forget", Suite.testForget},
		{"copy", Suite.testCopy},
		{"copy is independent", Suite.testCopyIndependent},
		{"copy refuses", Suite.testCopyRefuses},
		{"kv moves bit for bit", Suite.testKVMoves},
		{"kv between runners", Suite.testKVBetweenRunners},
		{"kv of nothing", Suite.testKVOfNothing},
		{"kv in parts", Suite.testKVParts},
		{"kv damaged", Suite.testKVDamaged},
		{"kv refuses", Suite.testKVRefuses},
		{"kv full", Suite.testKVFull},
		{"churn", Suite.testChurn},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) { c.run(s, t) })
	}
}

// Step runs one batch and fails the test on an error. The rows are copied, so
// they stay valid.
func Step(t testing.TB, r engine.Runner, spans ...engine.Span) [][]float32 {
	t.Helper()
	rows, err := r.Step(spans)
	if err != nil {
		t.Fatalf("step: %v", err)
	}
	out := make([][]float32, len(rows))
	for i, row := range rows {
		out[i] = append([]float32(nil), row...)
	}
	return out
}

// Last appends tokens to a sequence that holds pos tokens and returns the
// logits after them.
func Last(t testing.TB, r engine.Runner, s engine.Seq, pos int, tokens []engine.Token) []float32 {
	t.Helper()
	return Step(t, r, engine.Span{Seq: s, Pos: pos, Tokens: tokens, Logits: true})[0]
}

// Greedy continues the empty sequence s after prompt with the likeliest tokens,
// up to limit or an end token, which is not part of the result.
func Greedy(t testing.TB, r engine.Runner, s engine.Seq, prompt []engine.Token, limit int) []engine.Token {
	t.Helper()
	return Continue(t, r, s, 0, prompt, limit)
}

// Continue is Greedy for a sequence that holds pos tokens.
func Continue(t testing.TB, r engine.Runner, s engine.Seq, pos int, tokens []engine.Token, limit int) []engine.Token {
	t.Helper()
	var out []engine.Token
	for len(out) < limit {
		row := Last(t, r, s, pos, tokens)
		pos += len(tokens)
		next := Argmax(row)
		if r.IsEnd(next) {
			break
		}
		out = append(out, next)
		tokens = out[len(out)-1:]
	}
	return out
}

// Argmax is the index of the greatest logit, the first one on a tie.
func Argmax(row []float32) engine.Token {
	best := 0
	for i, x := range row {
		if x > row[best] {
			best = i
		}
	}
	return engine.Token(best)
}

// Text turns tokens into text.
func Text(r engine.Runner, tokens []engine.Token) string {
	var out []byte
	for _, t := range tokens {
		out = r.Piece(out, t)
	}
	return string(out)
}

// prose is what test prompts are cut from: sentences that the bundled models
// know, on which rounding differences stay small.
const prose = "set the heating in the attic to 21 and turn on the kitchen light then remind me in 2 hours to call mom "

// tokens makes n tokens of text that differ by salt.
func tokens(t testing.TB, r engine.Runner, n, salt int) []engine.Token {
	t.Helper()
	at := (salt * 17) % len(prose)
	var out []engine.Token
	for len(out) < n {
		more, err := r.Tokenize(prose[at:]+prose[:at], false)
		if err != nil || len(more) == 0 {
			t.Fatalf("tokenize: %d tokens, %v", len(more), err)
		}
		out = append(out, more...)
	}
	return out[:n:n]
}

// mustEqual fails unless two rows have the same bits, or are close where the
// suite is not exact.
func (s Suite) mustEqual(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if !s.Exact {
		mustBeClose(t, what, got, want)
		return
	}
	if len(got) != len(want) {
		t.Fatalf("%s: row of %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: logit %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// mustBeClose allows what other kernels for other batch sizes may round, which
// a mixture of experts amplifies where two experts are nearly tied.
func mustBeClose(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if d := distance(got, want); !(d < 0.3) {
		t.Fatalf("%s: rows differ by %.3f on average", what, d)
	}
}

// distance is the mean absolute difference of two rows, infinite for rows of
// different lengths.
func distance(a, b []float32) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	var sum float64
	for i := range a {
		sum += math.Abs(float64(a[i] - b[i]))
	}
	return sum / float64(len(a))
}
