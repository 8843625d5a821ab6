package llama_test

import (
	"os"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/models/heldout"
)

// TestAccuracy answers held-out prompts, many at a time. With WEIR_SOAK=1 it
// answers all 1,000 and compares with the model card, which was measured one
// prompt at a time by other code; else every tenth, a sample with its own score.
func TestAccuracy(t *testing.T) {
	cases := []struct {
		name      string
		kvTokens  int
		all, some float64 // percent right
	}{
		{"hub-edge", 0, 78.1, 81},
		{"hub-edge", 4096, 78.1, 81},
		{"hub-cloud", 0, 98.0, 96},
		{"hub-cloud", 4096, 98.0, 96},
	}
	examples, err := heldout.Test()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		r := llamatest.Load(t, llama.Options{Name: c.name, MaxSeqs: 8, KVTokens: c.kvTokens})
		want, slack, stride := c.all, 1.0, 1
		if os.Getenv("WEIR_SOAK") == "" {
			want, slack, stride = c.some, 2.0, 10
		}
		var chosen []models.Example
		for i := 0; i < len(examples); i += stride {
			chosen = append(chosen, examples[i])
		}
		right := 0
		for i, answer := range answerAll(t, r, chosen) {
			if answer == chosen[i].Answer {
				right++
			}
		}
		got := 100 * float64(right) / float64(len(chosen))
		t.Logf("%s, %d KV tokens: %.1f %% of %d", c.name, r.Info().KVTokens, got, len(chosen))
		if got < want-slack || got > want+slack {
			t.Errorf("%s: %.1f %% right, want %.1f within %.1f", c.name, got, want, slack)
		}
	}
}

// answerAll keeps all sequences of the runner busy: one batch per step, in which
// some sequences prefill and others decode.
func answerAll(t *testing.T, r *llama.Runner, examples []models.Example) []string {
	type job struct {
		index int
		held  int
		next  []engine.Token
		text  []byte
	}
	out := make([]string, len(examples))
	jobs := make([]*job, r.Info().MaxSeqs)
	for next, left := 0, len(examples); left > 0; {
		var spans []engine.Span
		for s := range jobs {
			if jobs[s] == nil && next < len(examples) {
				jobs[s] = &job{index: next, next: promptOf(t, r, examples[next].Prompt)}
				next++
			}
			if j := jobs[s]; j != nil {
				spans = append(spans, engine.Span{Seq: engine.Seq(s), Pos: j.held, Tokens: j.next, Logits: true})
			}
		}
		rows, err := r.Step(spans)
		if err != nil {
			t.Fatal(err)
		}
		for i, span := range spans {
			j := jobs[span.Seq]
			tok := enginetest.Argmax(rows[i])
			j.held += len(j.next)
			if !r.IsEnd(tok) && j.held < 600 {
				j.text, j.next = r.Piece(j.text, tok), []engine.Token{tok}
				continue
			}
			out[j.index], jobs[span.Seq], left = string(j.text), nil, left-1
			if err := r.Forget(span.Seq, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

func promptOf(t *testing.T, r engine.Templater, question string) []engine.Token {
	t.Helper()
	tokens, err := r.ChatTokens([]engine.Message{{Role: "user", Content: question}}, false)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

// TestHandOff prefills on one runner and decodes on another: the answer is the
// one of a runner that did both, token by token.
func TestHandOff(t *testing.T) {
	examples, err := models.Calibration()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range models.Names() {
		both := llamatest.Load(t, llama.Options{Name: name, MaxSeqs: 1})
		prefill := llamatest.Load(t, llama.Options{Name: name, MaxSeqs: 3})
		decode := llamatest.Load(t, llama.Options{Name: name, MaxSeqs: 2})
		for i := 0; i < len(examples); i += 150 {
			prompt := promptOf(t, both, examples[i].Prompt)
			want := enginetest.Greedy(t, both, 0, prompt, 400)
			body, last := prompt[:len(prompt)-1], prompt[len(prompt)-1:]
			enginetest.Step(t, prefill, engine.Span{Seq: 2, Tokens: body})
			enginetest.Last(t, prefill, 2, len(body), last)
			kv, err := prefill.ExportKV(nil, 2, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decode.ImportKV(1, kv); err != nil {
				t.Fatal(err)
			}
			if err := decode.Forget(1, len(body)); err != nil { // compute one token for its logits
				t.Fatal(err)
			}
			got := enginetest.Continue(t, decode, 1, len(body), last, 400)
			if enginetest.Text(decode, got) != enginetest.Text(both, want) {
				t.Errorf("%s: %q: %q after a hand-off, %q alone", name, examples[i].Prompt, enginetest.Text(decode, got), enginetest.Text(both, want))
			}
			for _, f := range []error{both.Forget(0, 0), prefill.Forget(2, 0), decode.Forget(1, 0)} {
				if f != nil {
					t.Fatal(f)
				}
			}
		}
	}
}
