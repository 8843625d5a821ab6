package enginetest

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirhq/weir/engine"
	"pgregory.net/rapid"
)

func (s Suite) testForget(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 3})
	all := tokens(t, r, 12, 1)
	want := Last(t, r, 0, 0, all)
	Step(t, r, engine.Span{Seq: 1, Tokens: all[:8]}, engine.Span{Seq: 2, Tokens: tokens(t, r, 9, 4)})
	Step(t, r, engine.Span{Seq: 1, Pos: 8, Tokens: tokens(t, r, 6, 2)})
	if err := errors.Join(r.Forget(1, 8), r.Forget(1, 100), r.Forget(2, 0), r.Forget(2, 0)); err != nil {
		t.Fatal(err)
	}
	mustBeClose(t, "after the tail was dropped", Last(t, r, 1, 8, all[8:]), want)
	mustBeClose(t, "after all was dropped", Last(t, r, 2, 0, all), want)
	for _, bad := range []engine.Seq{-1, engine.Seq(r.Info().MaxSeqs)} {
		if r.Forget(bad, 0) == nil {
			t.Errorf("sequence %d: no error", bad)
		}
	}
	if r.Forget(0, -1) == nil {
		t.Error("negative position: no error")
	}
}

func (s Suite) testCopy(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 4})
	all := tokens(t, r, 12, 1)
	Step(t, r, engine.Span{Seq: 0, Tokens: all[:9]})
	if err := errors.Join(r.Copy(1, 0, 9), r.Copy(2, 0, 5), r.Copy(3, 0, 0)); err != nil {
		t.Fatal(err)
	}
	want := Last(t, r, 0, 9, all[9:])
	s.mustEqual(t, "whole copy", Last(t, r, 1, 9, all[9:]), want)
	mustBeClose(t, "copied prefix", Last(t, r, 2, 5, all[5:]), want)
	mustBeClose(t, "copy of nothing", Last(t, r, 3, 0, all), want)
}

// testCopyIndependent changes the source before the copy is used.
func (s Suite) testCopyIndependent(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 3})
	all, other := tokens(t, r, 12, 1), tokens(t, r, 10, 2)
	want := Last(t, r, 0, 0, all)
	Step(t, r, engine.Span{Seq: 1, Tokens: other})
	kv, err := r.ExportKV(nil, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Forget(1, 0), r.Copy(2, 0, 8), r.Forget(0, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ImportKV(0, kv); err != nil {
		t.Fatal(err)
	}
	copied, err := r.ExportKV(nil, 2, 0) // before any step
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.ImportKV(1, copied); n != 8 || err != nil {
		t.Fatalf("import of a copy: %d, %v", n, err)
	}
	mustBeClose(t, "copy", Last(t, r, 2, 8, all[8:]), want)
	mustBeClose(t, "export of the copy", Last(t, r, 1, 8, all[8:]), want)
}

func (s Suite) testCopyRefuses(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 3})
	Step(t, r, engine.Span{Seq: 0, Tokens: tokens(t, r, 4, 1)}, engine.Span{Seq: 1, Tokens: tokens(t, r, 4, 2)})
	top := engine.Seq(r.Info().MaxSeqs)
	for _, c := range []struct {
		dst, src engine.Seq
		n        int
	}{{1, 0, 2}, {0, 0, 2}, {2, 0, 5}, {2, 0, -1}, {top, 0, 1}, {2, top, 1}, {-1, 0, 1}} {
		if r.Copy(c.dst, c.src, c.n) == nil {
			t.Errorf("Copy(%d, %d, %d): no error", c.dst, c.src, c.n)
		}
	}
}

func (s Suite) testKVMoves(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 4})
	Step(t, r, engine.Span{Seq: 1, Tokens: tokens(t, r, 20, 2)}) // a neighbour
	Step(t, r, engine.Span{Seq: 0, Tokens: tokens(t, r, 17, 1)})
	prefix := []byte("prefix")
	out, err := r.ExportKV(prefix, 0, 0)
	if err != nil || string(out[:len(prefix)]) != "prefix" {
		t.Fatalf("export does not append: %v", err)
	}
	if err := r.Forget(1, 0); err != nil {
		t.Fatal(err)
	}
	n, err := r.ImportKV(3, out[len(prefix):])
	if n != 17 || err != nil {
		t.Fatalf("import: %d, %v", n, err)
	}
	for pos, tok := 17, []engine.Token{5}; pos < 30; pos++ {
		want := Last(t, r, 0, pos, tok)
		s.mustEqual(t, "continuation", Last(t, r, 3, pos, tok), want)
		tok = []engine.Token{Argmax(want)}
	}
}

func (s Suite) testKVBetweenRunners(t *testing.T) {
	a, b := s.Open(t, Limits{MaxSeqs: 2}), s.Open(t, Limits{MaxSeqs: 4})
	Step(t, a, engine.Span{Seq: 1, Tokens: tokens(t, a, 33, 1)})
	kv, err := a.ExportKV(nil, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := b.ImportKV(2, kv); n != 33 || err != nil {
		t.Fatalf("import: %d, %v", n, err)
	}
	again, err := b.ExportKV(nil, 2, 0)
	if err != nil || len(again) != len(kv) {
		t.Errorf("exported %d bytes again, %v; want %d", len(again), err, len(kv))
	}
	s.mustEqual(t, "continuation", Last(t, b, 2, 33, []engine.Token{7}), Last(t, a, 1, 33, []engine.Token{7}))
}

// testKVParts moves a sequence part by part, as it grows.
func (s Suite) testKVParts(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 3})
	if r.Info().KVWhole {
		t.Skip("this model's KV is exported whole")
	}
	all := tokens(t, r, 20, 1)
	var parts [][]byte
	for _, to := range [][2]int{{0, 9}, {9, 14}, {14, 20}} {
		Step(t, r, engine.Span{Seq: 0, Pos: to[0], Tokens: all[to[0]:to[1]]}, engine.Span{Seq: 1, Pos: to[0], Tokens: all[:to[1]-to[0]]})
		kv, err := r.ExportKV(nil, 0, to[0])
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, kv)
	}
	for name, bad := range map[string][][]byte{"a gap": {parts[0], parts[2]}, "no beginning": parts[1:], "out of order": {parts[0], parts[2], parts[1]}, "twice": {parts[0], parts[0]}} {
		if n, err := r.ImportKV(2, bad...); !errors.Is(err, engine.ErrKVFormat) || n != 0 {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	for _, from := range []int{-1, 21} {
		if _, err := r.ExportKV(nil, 0, from); err == nil {
			t.Errorf("export from %d: no error", from)
		}
	}
	if n, err := r.ImportKV(2, parts...); n != 20 || err != nil {
		t.Fatalf("import: %d, %v", n, err)
	}
	s.mustEqual(t, "continuation", Last(t, r, 2, 20, []engine.Token{7}), Last(t, r, 0, 20, []engine.Token{7}))
}

func (s Suite) testKVOfNothing(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 2})
	kv, err := r.ExportKV(nil, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.ImportKV(1, kv); n != 0 || err != nil {
		t.Errorf("import of nothing: %d, %v", n, err)
	}
	Step(t, r, engine.Span{Seq: 1, Tokens: tokens(t, r, 3, 1)})
}

func (s Suite) testKVRefuses(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 2})
	Step(t, r, engine.Span{Seq: 0, Tokens: tokens(t, r, 4, 1)})
	kv, err := r.ExportKV(nil, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ImportKV(0, kv); err == nil {
		t.Error("import into a sequence in use: no error")
	}
	for _, s := range []engine.Seq{-1, engine.Seq(r.Info().MaxSeqs)} {
		if _, err := r.ImportKV(s, kv); err == nil {
			t.Errorf("import into sequence %d: no error", s)
		}
		if _, err := r.ExportKV(nil, s, 0); err == nil {
			t.Errorf("export of sequence %d: no error", s)
		}
	}
}

// testKVDamaged flips, cuts and extends: each time ErrKVFormat and a sequence
// that is empty and works.
func (s Suite) testKVDamaged(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 2})
	Step(t, r, engine.Span{Seq: 0, Tokens: tokens(t, r, 11, 1)})
	kv, err := r.ExportKV(nil, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		bad := damage(rt, kv)
		if n, err := r.ImportKV(1, bad); !errors.Is(err, engine.ErrKVFormat) || n != 0 {
			rt.Fatalf("import of damaged bytes: %d, %v", n, err)
		}
	})
	s.mustEqual(t, "after damage", Last(t, r, 1, 0, tokens(t, r, 5, 2)), Last(t, s.Open(t, Limits{MaxSeqs: 2}), 1, 0, tokens(t, r, 5, 2)))
	if err := r.Forget(1, 0); err != nil {
		t.Fatal(err)
	}
	if n, err := r.ImportKV(1, kv); n != 11 || err != nil {
		t.Errorf("import of good bytes afterwards: %d, %v", n, err)
	}
}

func damage(t *rapid.T, kv []byte) []byte {
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return kv[:rapid.IntRange(0, len(kv)-1).Draw(t, "cut")]
	case 1:
		return append(slices.Clone(kv), rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "tail")...)
	case 2:
		bad := slices.Clone(kv)
		bad[rapid.IntRange(0, len(kv)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		return bad
	default:
		bad := slices.Clone(kv)
		bad[rapid.IntRange(0, min(len(kv), 128)-1).Draw(t, "head")] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		return bad
	}
}

// testKVFull fills a cache that is smaller than all sequences together.
func (s Suite) testKVFull(t *testing.T) {
	r := s.Open(t, Limits{MaxSeqs: 4, Context: 256, KVTokens: 256, MaxBatch: 256})
	fill(t, r, 0, 150)
	fill(t, r, 1, 80)
	kv, err := r.ExportKV(nil, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	probe := tokens(t, r, 3, 9)
	_, err = r.Step([]engine.Span{{Seq: 1, Pos: 80, Tokens: tokens(t, r, 3, 9)}, {Seq: 2, Tokens: tokens(t, r, 100, 3)}})
	if !errors.Is(err, engine.ErrKVFull) {
		t.Fatalf("step into a full cache: %v", err)
	}
	if n, err := r.ImportKV(3, kv); !errors.Is(err, engine.ErrKVFull) || n != 0 {
		t.Fatalf("import into a full cache: %d, %v", n, err)
	}
	other := s.Open(t, Limits{MaxSeqs: 4, Context: 256, KVTokens: 256, MaxBatch: 256})
	fill(t, other, 0, 150)
	fill(t, other, 1, 80)
	s.mustEqual(t, "sequence of the refused step", Last(t, r, 1, 80, probe), Last(t, other, 1, 80, probe))
	if err := r.Forget(0, 0); err != nil {
		t.Fatal(err)
	}
	fill(t, r, 2, 100)
	if n, err := r.ImportKV(3, kv); n != 0 || !errors.Is(err, engine.ErrKVFull) {
		t.Fatalf("import of 150 tokens beside 183: %d, %v", n, err)
	}
	if err := errors.Join(r.Forget(1, 0), r.Forget(3, 0)); err != nil {
		t.Fatal(err)
	}
	if n, err := r.ImportKV(3, kv); n != 150 || err != nil {
		t.Fatalf("import into freed room: %d, %v", n, err)
	}
}

// testChurn fills, copies, moves and drops at random beside a plain model of
// what each sequence holds, and checks one continuation of each at the end.
func (s Suite) testChurn(t *testing.T) {
	const seqs, rounds = 5, 120
	r, alone := s.Open(t, Limits{MaxSeqs: seqs, Context: 128}), s.Open(t, Limits{MaxSeqs: 1, Context: 128})
	rng := rand.New(rand.NewPCG(1, 2))
	held := make([][]engine.Token, seqs)
	for i := range rounds {
		s, o := rng.IntN(seqs), rng.IntN(seqs)
		switch op := rng.IntN(5); {
		case op == 0:
			n := rng.IntN(len(held[s]) + 1)
			if err := r.Forget(engine.Seq(s), n); err != nil {
				t.Fatal(err)
			}
			held[s] = held[s][:n]
		case op == 1 && len(held[s]) == 0 && s != o:
			n := rng.IntN(len(held[o]) + 1)
			if err := r.Copy(engine.Seq(s), engine.Seq(o), n); err != nil {
				t.Fatal(err)
			}
			held[s] = slices.Clone(held[o][:n])
		case op == 2 && len(held[s]) == 0 && s != o:
			kv, err := r.ExportKV(nil, engine.Seq(o), 0)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := r.ImportKV(engine.Seq(s), kv); err != nil || n != len(held[o]) {
				t.Fatalf("round %d: import: %d, %v; want %d", i, n, err, len(held[o]))
			}
			held[s] = slices.Clone(held[o])
		default:
			add := tokens(t, r, 1+rng.IntN(12), i)
			if len(held[s])+len(add) < 120 {
				Step(t, r, engine.Span{Seq: engine.Seq(s), Pos: len(held[s]), Tokens: add})
				held[s] = append(held[s], add...)
			}
		}
	}
	for s, have := range held {
		whole := append(slices.Clone(have), 9)
		mustBeClose(t, "continuation", Last(t, r, engine.Seq(s), len(have), []engine.Token{9}), Last(t, alone, 0, 0, whole))
		if err := alone.Forget(0, 0); err != nil {
			t.Fatal(err)
		}
	}
}
