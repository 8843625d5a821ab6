package llama_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
)

// TestKVAcrossLayouts moves KV between runners whose caches are laid out
// differently: another number of sequences, one shared buffer.
func TestKVAcrossLayouts(t *testing.T) {
	own := llamatest.Load(t, llama.Options{Name: "hub-cloud", MaxSeqs: 3})
	shared := llamatest.Load(t, llama.Options{Name: "hub-cloud", MaxSeqs: 5, KVTokens: 2048})
	if !own.LayoutKnown() || !shared.LayoutKnown() {
		t.Fatal("the layout of a plain cache is not known")
	}
	if a, b := own.Info().Fingerprint, shared.Info().Fingerprint; a != b || a.KV != "f16/f16" {
		t.Fatalf("fingerprints %v and %v", a, b)
	}
	if n := own.Info().KVBytesPerToken; n != 3072 {
		t.Errorf("%d bytes per token, want 3072", n)
	}
	prompt := promptOf(t, own, "remind me in 2 hours to call mom")
	enginetest.Step(t, shared, engine.Span{Seq: 0, Tokens: prompt[:9]}, engine.Span{Seq: 4, Tokens: prompt[:20]})
	if err := shared.Forget(0, 4); err != nil { // leaves holes that the rest of sequence 4 fills
		t.Fatal(err)
	}
	enginetest.Step(t, shared, engine.Span{Seq: 4, Pos: 20, Tokens: prompt[20:]})
	kv, err := shared.ExportKV(nil, 4, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(kv) != 48+3072*len(prompt) {
		t.Errorf("%d bytes for %d tokens", len(kv), len(prompt))
	}
	if n, err := own.ImportKV(2, kv); n != len(prompt) || err != nil {
		t.Fatalf("import: %d, %v", n, err)
	}
	again, err := own.ExportKV(nil, 2, 0)
	if err != nil || !slices.Equal(again, kv) {
		t.Errorf("exported again: %d bytes, %v; want the same %d", len(again), err, len(kv))
	}
	if err := own.Forget(2, len(prompt)-1); err != nil {
		t.Fatal(err)
	}
	answer := enginetest.Text(own, enginetest.Continue(t, own, 2, len(prompt)-1, prompt[len(prompt)-1:], 100))
	if answer != `{"do":"remind","minutes":120,"text":"call mom"}` {
		t.Errorf("answer %q", answer)
	}
}

func TestKVOfAnotherModel(t *testing.T) {
	a := llamatest.Load(t, llama.Options{Name: "hub-edge", MaxSeqs: 1})
	b := llamatest.Load(t, llama.Options{Name: "hub-cloud", MaxSeqs: 1})
	enginetest.Step(t, a, engine.Span{Tokens: []engine.Token{5, 6, 7}})
	kv, err := a.ExportKV(nil, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.ImportKV(0, kv); !errors.Is(err, engine.ErrKVFormat) {
		t.Errorf("KV of another model: %v", err)
	}
}

// TestKVOfUnknownLayout exports llama.cpp's own state, as for a model whose
// cache is not taken apart.
func TestKVOfUnknownLayout(t *testing.T) {
	r := llamatest.Load(t, llama.Options{Name: "hub-edge", MaxSeqs: 2, Context: 256})
	r.ForgetLayout()
	enginetest.Step(t, r, engine.Span{Tokens: []engine.Token{5, 6, 7}})
	kv, err := r.ExportKV(nil, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.ImportKV(1, kv); n != 3 || err != nil {
		t.Fatalf("import: %d, %v", n, err)
	}
	got, want := enginetest.Last(t, r, 1, 3, []engine.Token{8}), enginetest.Last(t, r, 0, 3, []engine.Token{8})
	if !slices.Equal(got, want) {
		t.Error("continuation differs")
	}
	if err := r.Forget(1, 0); err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]func(h []byte){
		"tokens": func(h []byte) { h[28] = 2 },
		"magic":  func(h []byte) { h[48]++ },
		"cells":  func(h []byte) { h[48+12] = 200 },
	} {
		if n, err := r.ImportKV(1, forge(kv, set)); !errors.Is(err, engine.ErrKVFormat) || n != 0 {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

// forge sets a field of an envelope and makes its sums right again, as someone
// who wants to harm would.
func forge(kv []byte, set func(h []byte)) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	out := slices.Clone(kv)
	set(out)
	if len(out) >= 48 {
		binary.LittleEndian.PutUint32(out[40:], crc32.Checksum(out[48:], table))
		binary.LittleEndian.PutUint32(out[44:], crc32.Checksum(out[:44], table))
	}
	return out
}

func TestKVForged(t *testing.T) {
	r := llamatest.Load(t, llama.Options{Name: "hub-edge", MaxSeqs: 2, Context: 256})
	enginetest.Step(t, r, engine.Span{Tokens: []engine.Token{5, 6, 7}})
	kv, err := r.ExportKV(nil, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, set := range map[string]func(h []byte){
		"more tokens":     func(h []byte) { h[28] = 4 },
		"fewer tokens":    func(h []byte) { h[28] = 2 },
		"no tokens":       func(h []byte) { h[28] = 0 },
		"too many tokens": func(h []byte) { binary.LittleEndian.PutUint32(h[28:], 1<<31) },
		"length":          func(h []byte) { binary.LittleEndian.PutUint64(h[28:], 1<<63) },
		"model":           func(h []byte) { h[8]++ },
	} {
		if n, err := r.ImportKV(1, forge(kv, set)); !errors.Is(err, engine.ErrKVFormat) || n != 0 {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	// Forged rows are other numbers, no other structure: they are accepted and
	// harm nothing but their own sequence.
	bad := forge(kv, func(h []byte) {
		for i := 48; i < len(h); i++ {
			h[i] = 0xff
		}
	})
	if n, err := r.ImportKV(1, bad); n != 3 || err != nil {
		t.Fatalf("forged rows: %d, %v", n, err)
	}
	enginetest.Step(t, r, engine.Span{Seq: 1, Pos: 3, Tokens: []engine.Token{8}})
	if err := r.Forget(1, 0); err != nil {
		t.Fatal(err)
	}
	if n, err := r.ImportKV(1, kv); n != 3 || err != nil {
		t.Fatalf("good bytes afterwards: %d, %v", n, err)
	}
	for i, x := range enginetest.Last(t, r, 1, 3, []engine.Token{8}) {
		if want := enginetest.Last(t, r, 0, 3, []engine.Token{8})[i]; x != want {
			t.Fatalf("logit %d is %v after forged rows, want %v", i, x, want)
		}
		if err := r.Forget(0, 3); err != nil {
			t.Fatal(err)
		}
	}
}

// FuzzImportKV gives a runner any bytes, with right sums as well. It must
// neither crash nor leave the sequence in use after an error.
func FuzzImportKV(f *testing.F) {
	r := llamatest.Load(f, llama.Options{Name: "hub-edge", MaxSeqs: 2, Context: 128})
	enginetest.Step(f, r, engine.Span{Tokens: []engine.Token{5, 6, 7}})
	kv, err := r.ExportKV(nil, 0, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(kv, true)
	f.Add(kv[:48], true)
	f.Add(kv[:50], false)
	f.Add([]byte("WEIRKV01"), false)
	f.Fuzz(func(t *testing.T, data []byte, sums bool) {
		if sums {
			data = forge(data, func([]byte) {})
		}
		n, err := r.ImportKV(1, data)
		if err != nil && (!errors.Is(err, engine.ErrKVFormat) || n != 0) {
			t.Fatalf("%d, %v", n, err)
		}
		enginetest.Step(t, r, engine.Span{Seq: 1, Pos: n, Tokens: []engine.Token{9}})
		if err := r.Forget(1, 0); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzParseState(f *testing.F) {
	r := llamatest.Load(f, llama.Options{Name: "hub-edge", MaxSeqs: 2, Context: 128})
	enginetest.Step(f, r, engine.Span{Tokens: []engine.Token{5, 6}})
	raw, err := r.State()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(raw[:60])
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, n, err := llama.ParseState(data); err == nil && n > len(data) {
			t.Errorf("%d bytes of rows from %d bytes", n, len(data))
		}
	})
}
