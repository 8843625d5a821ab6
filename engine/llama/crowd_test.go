package llama_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
)

// TestCrowdMoves copies several answers that are made in one batch to another
// runner, in two parts each, and makes them on both. What follows has the same bits:
// the shape of the batch, which moves the logits of hub-cloud after text unlike its
// training by much, is the same on both sides, so nothing but the copies could differ.
func TestCrowdMoves(t *testing.T) {
	const n, first, whole, length = 6, 20, 40, 100 // tokens made before a part is copied, and at the end
	o := llama.Options{Name: "hub-cloud", MaxSeqs: n, MaxBatch: 512, Context: 512}
	from, to := llamatest.Load(t, o), llamatest.Load(t, o)
	crowd := make([]engine.Span, n)
	parts := make([][][]byte, n)
	part := func(begin func(i int) int) {
		for i, s := range crowd {
			kv, err := from.ExportKV(nil, s.Seq, begin(i))
			if err != nil {
				t.Fatal(err)
			}
			parts[i] = append(parts[i], kv)
		}
	}
	for i := range crowd {
		prompt := promptOf(t, from, fmt.Sprint(i, " tell me all about it", strings.Repeat(" and then", 10+i)))
		crowd[i] = follow(engine.Span{Seq: engine.Seq(i), Tokens: prompt}, enginetest.Last(t, from, engine.Seq(i), 0, prompt))
	}
	second := make([]int, n) // where the second parts begin
	for made := 1; made < length; made++ {
		switch made {
		case first:
			part(func(int) int { return 0 })
			for i, s := range crowd {
				second[i] = s.Pos
			}
		case whole:
			part(func(i int) int { return second[i] })
			for i, s := range crowd {
				if held, err := to.ImportKV(s.Seq, parts[i]...); held != s.Pos || err != nil {
					t.Fatalf("sequence %d: %d of %d tokens, %v", i, held, s.Pos, err)
				}
			}
		}
		rows := enginetest.Step(t, from, crowd...)
		if made >= whole {
			for i, row := range enginetest.Step(t, to, crowd...) {
				if !slices.Equal(row, rows[i]) {
					t.Fatalf("sequence %d, token %d: other logits after the move", i, made)
				}
			}
		}
		for i, row := range rows {
			crowd[i] = follow(crowd[i], row)
		}
	}
}

// follow is the span of the likeliest token after one.
func follow(s engine.Span, row []float32) engine.Span {
	return engine.Span{Seq: s.Seq, Pos: s.Pos + len(s.Tokens), Tokens: []engine.Token{enginetest.Argmax(row)}, Logits: true}
}
