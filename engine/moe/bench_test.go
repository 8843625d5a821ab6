package moe_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/moe"
)

const benchPrompt = 32

// BenchmarkDecode steps n sequences by one token each, in this runner and in
// llama.cpp on the same file, one thread each. They take turns of 16 steps, so
// that whatever else the machine does slows both; ratio is this runner's tokens
// per second over llama.cpp's. Allocations are of both together.
func BenchmarkDecode(b *testing.B) {
	for _, name := range models.Names() {
		own := open(b, moe.Options{Name: name, MaxSeqs: 32})
		other := llamatest.Load(b, llama.Options{Name: name, MaxSeqs: 32})
		for _, n := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/batch=%d", name, n), func(b *testing.B) {
				a, c := newDecoder(b, own, n), newDecoder(b, other, n)
				for b.Loop() {
					a.turn(b)
					c.turn(b)
				}
				b.ReportMetric(a.rate(), "moe-tok/s")
				b.ReportMetric(c.rate(), "llama-tok/s")
				b.ReportMetric(a.rate()/c.rate(), "ratio")
				a.end(b)
				c.end(b)
			})
		}
	}
}

// BenchmarkStep is this runner alone, for its allocations.
func BenchmarkStep(b *testing.B) {
	own := open(b, moe.Options{Name: "hub-cloud", MaxSeqs: 32})
	for _, n := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("batch=%d", n), func(b *testing.B) {
			d := newDecoder(b, own, n)
			b.ReportAllocs()
			for b.Loop() {
				d.step(b)
			}
			b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "tok/s")
			d.end(b)
		})
	}
}

// decoder generates in n sequences.
type decoder struct {
	r      engine.Runner
	spans  []engine.Span
	next   []engine.Token
	tokens int
	time   time.Duration
}

func newDecoder(b *testing.B, r engine.Runner, n int) *decoder {
	d := &decoder{r: r, spans: make([]engine.Span, n), next: make([]engine.Token, n)}
	for s := range d.spans {
		seq := engine.Seq(s)
		enginetest.Step(b, r, engine.Span{Seq: seq, Tokens: make([]engine.Token, benchPrompt)})
		d.spans[s] = engine.Span{Seq: seq, Pos: benchPrompt, Tokens: d.next[s : s+1], Logits: true}
	}
	return d
}

func (d *decoder) turn(b *testing.B) {
	start := time.Now()
	for range 16 {
		d.step(b)
	}
	d.time += time.Since(start)
	d.tokens += 16 * len(d.spans)
}

func (d *decoder) rate() float64 { return float64(d.tokens) / d.time.Seconds() }

func (d *decoder) step(b *testing.B) {
	if d.spans[0].Pos == 256 {
		for s := range d.spans {
			if err := d.r.Forget(d.spans[s].Seq, benchPrompt); err != nil {
				b.Fatal(err)
			}
			d.spans[s].Pos = benchPrompt
		}
	}
	rows, err := d.r.Step(d.spans)
	if err != nil {
		b.Fatal(err)
	}
	for s := range d.spans {
		d.next[s] = enginetest.Argmax(rows[s])
		d.spans[s].Pos++
	}
}

func (d *decoder) end(b *testing.B) {
	for _, s := range d.spans {
		if err := d.r.Forget(s.Seq, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPrefill steps 256 tokens of one sequence.
func BenchmarkPrefill(b *testing.B) {
	for _, name := range models.Names() {
		b.Run(name+"/moe", func(b *testing.B) { benchPrefill(b, open(b, moe.Options{Name: name, MaxSeqs: 1})) })
		b.Run(name+"/llama", func(b *testing.B) {
			benchPrefill(b, llamatest.Load(b, llama.Options{Name: name, MaxSeqs: 1}))
		})
	}
}

func benchPrefill(b *testing.B, r engine.Runner) {
	tokens := make([]engine.Token, 256)
	for i := range tokens {
		tokens[i] = engine.Token(3 + 97 + i%26)
	}
	for b.Loop() {
		if _, err := r.Step([]engine.Span{{Tokens: tokens, Logits: true}}); err != nil {
			b.Fatal(err)
		}
		if err := r.Forget(0, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(tokens))/b.Elapsed().Seconds(), "tok/s")
}
