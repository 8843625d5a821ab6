package evaluate

import (
	"slices"
	"time"

	"github.com/weirhq/weir/engine"
)

// prompt and most are the tokens that sequences hold when a Decoder starts and
// when it starts over.
const (
	prompt = 32
	most   = 256
)

// Decoder generates greedily in n sequences of a runner, one token of each per
// step.
type Decoder struct {
	r     engine.Runner
	spans []engine.Span
	next  []engine.Token
}

// NewDecoder fills the sequences.
func NewDecoder(r engine.Runner, n int) (*Decoder, error) {
	d := &Decoder{r: r, spans: make([]engine.Span, n), next: make([]engine.Token, n)}
	for s := range d.spans {
		seq := engine.Seq(s)
		if _, err := r.Step([]engine.Span{{Seq: seq, Tokens: make([]engine.Token, prompt), Logits: true}}); err != nil {
			return nil, err
		}
		d.spans[s] = engine.Span{Seq: seq, Pos: prompt, Tokens: d.next[s : s+1], Logits: true}
	}
	return d, nil
}

// Step generates one token in each sequence.
func (d *Decoder) Step() error {
	if d.spans[0].Pos == most {
		for s := range d.spans {
			if err := d.r.Forget(d.spans[s].Seq, prompt); err != nil {
				return err
			}
			d.spans[s].Pos = prompt
		}
	}
	rows, err := d.r.Step(d.spans)
	if err != nil {
		return err
	}
	for s := range d.spans {
		d.next[s] = argmax(rows[s])
		d.spans[s].Pos++
	}
	return nil
}

// Rate is the tokens per second over all sequences in some steps.
func (d *Decoder) Rate(steps int) (float64, error) {
	start := time.Now()
	for range steps {
		if err := d.Step(); err != nil {
			return 0, err
		}
	}
	return float64(steps*len(d.spans)) / time.Since(start).Seconds(), nil
}

// Close empties the sequences.
func (d *Decoder) Close() error {
	for _, s := range d.spans {
		if err := d.r.Forget(s.Seq, 0); err != nil {
			return err
		}
	}
	return nil
}

// Pair is the decoding rates of two runners in tokens per second, medians over
// turns, and the median of the ratios.
type Pair struct{ Own, Other, Ratio float64 }

// turns that two runners take, and steps of a turn: whatever else the machine
// does slows both.
const (
	turns = 9
	steps = 16
)

// Compare decodes n sequences in both runners in turns.
func Compare(own, other engine.Runner, n int) (Pair, error) {
	a, err := NewDecoder(own, n)
	if err != nil {
		return Pair{}, err
	}
	b, err := NewDecoder(other, n)
	if err != nil {
		return Pair{}, err
	}
	var owns, others, ratios []float64
	for range turns {
		x, err := a.Rate(steps)
		if err != nil {
			return Pair{}, err
		}
		y, err := b.Rate(steps)
		if err != nil {
			return Pair{}, err
		}
		owns, others, ratios = append(owns, x), append(others, y), append(ratios, x/y)
	}
	if err := a.Close(); err != nil {
		return Pair{}, err
	}
	return Pair{median(owns), median(others), median(ratios)}, b.Close()
}

func median(v []float64) float64 {
	return slices.Sorted(slices.Values(v))[len(v)/2]
}
