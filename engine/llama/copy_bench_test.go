package llama_test

import (
	"fmt"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
)

// BenchmarkPrefix compares the ways to have the first tokens of a sequence in
// another one: to copy them, and to compute them again.
func BenchmarkPrefix(b *testing.B) {
	for _, shared := range []bool{false, true} {
		o := llama.Options{Name: "hub-cloud", MaxSeqs: 4}
		if shared {
			o.KVTokens = 4096
		}
		r := llamatest.Load(b, o)
		all := make([]engine.Token, 1500)
		for i := range all {
			all[i] = engine.Token(3 + i%200)
		}
		compute := func(s engine.Seq, n int) {
			for pos := 0; pos < n; pos += 500 {
				if _, err := r.Step([]engine.Span{{Seq: s, Pos: pos, Tokens: all[pos:min(n, pos+500)]}}); err != nil {
					b.Fatal(err)
				}
			}
		}
		forget := func(s engine.Seq) {
			if err := r.Forget(s, 0); err != nil {
				b.Fatal(err)
			}
		}
		compute(0, len(all))
		for _, n := range []int{16, 100, 1000} {
			b.Run(fmt.Sprintf("shared=%v/copy/%d-of-1500", shared, n), func(b *testing.B) {
				for b.Loop() {
					if err := r.Copy(1, 0, n); err != nil {
						b.Fatal(err)
					}
					forget(1)
				}
			})
			b.Run(fmt.Sprintf("shared=%v/compute/%d", shared, n), func(b *testing.B) {
				for b.Loop() {
					compute(1, n)
					forget(1)
				}
			})
		}
	}
}
