package moe_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/moe"
)

// forge sets fields of an envelope and makes its sums right again, as someone
// who wants to harm would.
func forge(kv []byte, set func(h []byte)) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	out := slices.Clone(kv)
	set(out)
	if len(out) >= 40 {
		binary.LittleEndian.PutUint32(out[32:], crc32.Checksum(out[40:], table))
		binary.LittleEndian.PutUint32(out[36:], crc32.Checksum(out[:36], table))
	}
	return out
}

func TestKVForged(t *testing.T) {
	cache := t.TempDir()
	r := open(t, moe.Options{Name: "hub-edge", CacheDir: cache, MaxSeqs: 2, Context: 256})
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
		"model":           func(h []byte) { h[8]++ },
	} {
		if n, err := r.ImportKV(1, forge(kv, set)); !errors.Is(err, engine.ErrKVFormat) || n != 0 {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	other := open(t, moe.Options{Name: "hub-cloud", CacheDir: cache, MaxSeqs: 1})
	if _, err := other.ImportKV(0, kv); !errors.Is(err, engine.ErrKVFormat) {
		t.Errorf("KV of another model: %v", err)
	}
	// Forged values are other numbers, no other structure: they harm nothing but
	// their own sequence.
	bad := forge(kv, func(h []byte) {
		for i := 40; i < len(h); i++ {
			h[i] = 0xff
		}
	})
	if n, err := r.ImportKV(1, bad); n != 3 || err != nil {
		t.Fatalf("forged values: %d, %v", n, err)
	}
	want := enginetest.Last(t, r, 0, 3, []engine.Token{8})
	if err := r.Forget(0, 3); err != nil {
		t.Fatal(err)
	}
	rows := enginetest.Step(t, r, engine.Span{Seq: 1, Pos: 3, Tokens: []engine.Token{8}}, engine.Span{Seq: 0, Pos: 3, Tokens: []engine.Token{8}, Logits: true})
	if !slices.Equal(rows[0], want) {
		t.Error("a neighbour of forged values computes something else")
	}
}

// FuzzImportKV gives a runner any bytes, with right sums as well. It must
// neither crash nor leave the sequence in use after an error.
func FuzzImportKV(f *testing.F) {
	r := open(f, moe.Options{Name: "hub-cloud", MaxSeqs: 2, Context: 128})
	enginetest.Step(f, r, engine.Span{Tokens: []engine.Token{5, 6, 7}})
	kv, err := r.ExportKV(nil, 0, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(kv, true)
	f.Add(kv[:40], true)
	f.Add(kv[:50], false)
	f.Add(slices.Concat(kv, kv), true)
	f.Add([]byte("WEIRMKV1"), false)
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
