package enginetest

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirhq/weir/engine"
	"pgregory.net/rapid"
)

func (s Suite) testInfo(t *testing.T) {
	info := s.Open(t, Limits{}).Info()
	if info.Name == "" || info.Arch == "" || info.Layers < 1 || info.Vocab < 2 || info.Params < 1 {
		t.Errorf("incomplete: %+v", info)
	}
	if info.Context < 1 || info.MaxSeqs < 1 || info.MaxBatch < 1 || info.KVTokens < info.Context || info.KVBytesPerToken < 1 {
		t.Errorf("limits: %+v", info)
	}
	f := info.Fingerprint
	if len(f.Weights) != 64 || f.Runner == "" || f.KV == "" {
		t.Errorf("fingerprint: %+v", f)
	}
	if again := s.Open(t, Limits{}).Info().Fingerprint; again != f {
		t.Errorf("fingerprint changed from %v to %v", f, again)
	}
}

func (s Suite) testText(t *testing.T) {
	r := s.Open(t, Limits{})
	rapid.Check(t, func(t *rapid.T) {
		text := strings.ToValidUTF8(rapid.String().Draw(t, "text"), "?")
		toks, err := r.Tokenize(text, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := Text(r, toks); got != text {
			t.Fatalf("%q came back as %q", text, got)
		}
	})
	for _, tok := range []engine.Token{-1, engine.Token(r.Info().Vocab), 1 << 30} {
		if got := r.Piece([]byte("x"), tok); string(got) != "x" {
			t.Errorf("token %d has the piece %q", tok, got[1:])
		}
		if r.IsEnd(tok) {
			t.Errorf("token %d is an end", tok)
		}
	}
	if eos := r.Info().EOS; eos >= 0 && !r.IsEnd(eos) {
		t.Error("EOS is no end")
	}
}

func (s Suite) testStepRows(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 4})
	if rows, err := r.Step(nil); err != nil || len(rows) != 0 {
		t.Errorf("empty step: %d rows, %v", len(rows), err)
	}
	rows := Step(t, r,
		engine.Span{Seq: 2, Tokens: tokens(t, r, 5, 1), Logits: true},
		engine.Span{Seq: 0, Tokens: tokens(t, r, 3, 2)},
		engine.Span{Seq: 1, Tokens: tokens(t, r, 1, 3), Logits: true})
	if len(rows) != 2 || len(rows[0]) != r.Info().Vocab || len(rows[1]) != r.Info().Vocab {
		t.Fatalf("%d rows", len(rows))
	}
	mustBeClose(t, "first row", rows[0], Last(t, r, 3, 0, tokens(t, r, 5, 1)))
	if err := r.Forget(3, 0); err != nil {
		t.Fatal(err)
	}
	mustBeClose(t, "second row", rows[1], Last(t, r, 3, 0, tokens(t, r, 1, 3)))
}

// testBatchAgrees drives sequences of different lengths together.
func (s Suite) testBatchAgrees(t *testing.T) {
	const n = 6
	r, alone := s.Open(t, Limits{MaxSeqs: n}), s.Open(t, Limits{MaxSeqs: n})
	var spans []engine.Span
	for s := range n {
		spans = append(spans, engine.Span{Seq: engine.Seq(n - 1 - s), Tokens: tokens(t, r, 1+5*s, s), Logits: true})
	}
	for range 8 {
		rows := Step(t, r, spans...)
		for i, s := range spans {
			mustBeClose(t, "row", rows[i], Last(t, alone, s.Seq, s.Pos, s.Tokens))
		}
		for i, s := range spans {
			spans[i].Pos += len(s.Tokens)
			spans[i].Tokens = []engine.Token{Argmax(rows[i])}
		}
	}
}

func (s Suite) testChunksAgree(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 2, Context: 64})
	all := tokens(t, r, 40, 1)
	want := Last(t, r, 0, 0, all)
	for pos := 0; pos < len(all)-1; pos += 13 {
		Step(t, r, engine.Span{Seq: 1, Pos: pos, Tokens: all[pos:min(pos+13, len(all)-1)]})
	}
	mustBeClose(t, "after chunks", Last(t, r, 1, len(all)-1, all[len(all)-1:]), want)
}

func (s Suite) testStepRefuses(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 2, Context: 64, MaxBatch: 32})
	info := r.Info()
	good := engine.Span{Seq: 0, Tokens: tokens(t, r, 4, 1)}
	Step(t, r, good)
	span := func(seq engine.Seq, pos int, toks ...engine.Token) engine.Span {
		return engine.Span{Seq: seq, Pos: pos, Tokens: toks, Logits: true}
	}
	cases := map[string][]engine.Span{
		"no tokens":         {span(0, 4)},
		"gap":               {span(0, 5, 3)},
		"overlap":           {span(0, 3, 3)},
		"negative sequence": {span(-1, 0, 3)},
		"sequence too high": {span(engine.Seq(info.MaxSeqs), 0, 3)},
		"sequence twice":    {span(1, 0, 3), span(1, 1, 3)},
		"negative token":    {span(0, 4, -1)},
		"token too high":    {span(0, 4, engine.Token(info.Vocab))},
		"batch too big":     {span(1, 0, tokens(t, r, info.MaxBatch+1, 1)...)},
		"second is bad":     {span(1, 0, 3), span(0, 9, 3)},
	}
	for name, spans := range cases {
		if _, err := r.Step(spans); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// Nothing of the refused steps is left.
	s.mustEqual(t, "after refusals", Last(t, r, 0, 4, tokens(t, r, 2, 5)),
		Last(t, s.fresh(t, good), 0, 4, tokens(t, r, 2, 5)))
	fill(t, r, 1, info.Context)
	if _, err := r.Step([]engine.Span{span(1, info.Context, 3)}); err == nil {
		t.Error("beyond the context: no error")
	}
}

// testStop: a step that is stopped leaves the sequences as they were, and the
// next one computes what it would have computed.
func (s Suite) testStop(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 2, Context: 64, MaxBatch: 32})
	stopper, ok := r.(engine.Stopper)
	if !ok {
		t.Skip("this runner cannot leave a step")
	}
	good := engine.Span{Seq: 0, Tokens: tokens(t, r, 4, 1)}
	Step(t, r, good)
	var flag atomic.Uint32
	stopper.StopAt(&flag)
	more := engine.Span{Seq: 0, Pos: 4, Tokens: tokens(t, r, 20, 5), Logits: true}
	for range 3 {
		flag.Store(1)
		other := engine.Span{Seq: 1, Tokens: tokens(t, r, 8, 3), Logits: true}
		if rows, err := r.Step([]engine.Span{more, other}); !errors.Is(err, engine.ErrStopped) || rows != nil {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		flag.Store(0)
	}
	s.mustEqual(t, "after a stop", Step(t, r, more)[0], Step(t, s.fresh(t, good), more)[0])
}

// fresh opens another runner and runs one span.
func (s Suite) fresh(t *testing.T, first engine.Span) engine.Runner {
	r := s.Open(t, Limits{MaxSeqs: 2, Context: 64, MaxBatch: 32})
	Step(t, r, first)
	return r
}

// fill appends to the empty sequence s until it holds n tokens.
func fill(t testing.TB, r engine.Runner, s engine.Seq, n int) {
	t.Helper()
	all := tokens(t, r, n, int(s)+1)
	pos := 0
	for chunk := range slices.Chunk(all, r.Info().MaxBatch) {
		Step(t, r, engine.Span{Seq: s, Pos: pos, Tokens: chunk})
		pos += len(chunk)
	}
}

// testDistance is the suite's own check: rows of different prompts must be far
// apart, or mustBeClose would prove nothing.
func (s Suite) testDistance(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 2})
	a, b := Last(t, r, 0, 0, tokens(t, r, 12, 1)), Last(t, r, 1, 0, tokens(t, r, 12, 2))
	if d := distance(a, b); d < 0.6 {
		t.Errorf("rows of different prompts differ by %.3f only", d)
	}
}
