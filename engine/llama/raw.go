package llama

import (
	"fmt"
	"time"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/weirhq/weir/engine"
)

// RawDecode measures llama_decode without Weir's step loop, as the yardstick for
// it: batch sequences get prompt tokens each, then steps times one token each,
// which sample draws from the sequence's logits. It returns the time of those
// steps, sampling included. It goes through yzma's plain calls, not through
// Step, on the same context; all sequences must be empty, and are afterwards.
func (r *Runner) RawDecode(batch, prompt, steps int, sample func(seq int, row []float32) engine.Token) (time.Duration, error) {
	if batch < 1 || batch > r.info.MaxSeqs || batch > r.info.MaxBatch || prompt < 1 || steps < 1 || prompt+steps > r.info.Context {
		return 0, fmt.Errorf("raw decode: %d sequences of %d+%d tokens do not fit the runner", batch, prompt, steps)
	}
	for s, n := range r.held {
		if n > 0 {
			return 0, fmt.Errorf("raw decode: sequence %d is in use", s)
		}
	}
	b := llama.BatchInit(int32(r.info.MaxBatch), 0, 1)
	defer llama.BatchFree(b)
	defer llama.MemoryClear(r.mem, false)
	next := make([]llama.Token, batch)
	for s := range next {
		if err := r.rawPrompt(&b, s, prompt); err != nil {
			return 0, err
		}
		next[s] = llama.Token(max(r.info.BOS, 0))
	}
	start := time.Now()
	for pos := prompt; pos < prompt+steps; pos++ {
		if err := r.rawStep(&b, next, pos, sample); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// rawPrompt gives sequence s n tokens in as many calls as the batch size asks.
func (r *Runner) rawPrompt(b *llama.Batch, s, n int) error {
	for pos := 0; pos < n; {
		b.Clear()
		for ; pos < n && int(b.NTokens) < r.info.MaxBatch; pos++ {
			if err := b.Add(llama.Token(pos%r.info.Vocab), llama.Pos(pos), []llama.SeqId{llama.SeqId(s)}, false); err != nil {
				return err
			}
		}
		if rc, err := llama.Decode(r.ctx, *b); rc != 0 || err != nil {
			return fmt.Errorf("raw decode of a prompt: code %d: %w", rc, err)
		}
	}
	return nil
}

// rawStep appends one token to each sequence and samples the next.
func (r *Runner) rawStep(b *llama.Batch, next []llama.Token, pos int, sample func(int, []float32) engine.Token) error {
	b.Clear()
	for s, tok := range next {
		if err := b.Add(tok, llama.Pos(pos), []llama.SeqId{llama.SeqId(s)}, true); err != nil {
			return err
		}
	}
	if rc, err := llama.Decode(r.ctx, *b); rc != 0 || err != nil {
		return fmt.Errorf("raw decode: code %d: %w", rc, err)
	}
	for s := range next {
		row, err := llama.GetLogitsIth(r.ctx, int32(s), r.info.Vocab)
		if err != nil {
			return fmt.Errorf("raw decode: %w", err)
		}
		next[s] = llama.Token(sample(s, row))
	}
	return nil
}
