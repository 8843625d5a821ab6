package loop

import "github.com/weirhq/weir/engine"

// Pieces is a model's vocabulary as bytes, read once: asking the runner for
// each token would cost a foreign call on the hot path. Safe for concurrent
// use.
type Pieces struct {
	bytes   []byte
	ends    []uint32 // where token t's piece ends in bytes
	end     []bool   // tokens that end a generation
	endList []engine.Token
	longest int
}

// NewPieces reads the vocabulary of r.
func NewPieces(r engine.Runner) *Pieces {
	n := r.Info().Vocab
	p := &Pieces{ends: make([]uint32, n), end: make([]bool, n)}
	for t := range n {
		before := len(p.bytes)
		p.bytes = r.Piece(p.bytes, engine.Token(t))
		p.ends[t] = uint32(len(p.bytes))
		p.longest = max(p.longest, len(p.bytes)-before)
		if r.IsEnd(engine.Token(t)) {
			p.end[t] = true
			p.endList = append(p.endList, engine.Token(t))
		}
	}
	return p
}

// Bytes returns what t stands for. The caller must not change it.
func (p *Pieces) Bytes(t engine.Token) []byte {
	from := uint32(0)
	if t > 0 {
		from = p.ends[t-1]
	}
	return p.bytes[from:p.ends[t]:p.ends[t]]
}

// Text joins what tokens stand for.
func (p *Pieces) Text(tokens []engine.Token) []byte {
	var out []byte
	for _, t := range tokens {
		out = append(out, p.Bytes(t)...)
	}
	return out
}

// IsEnd reports whether t ends a generation.
func (p *Pieces) IsEnd(t engine.Token) bool { return p.end[t] }

// Longest is the most bytes of one token: a text of n bytes has at least
// n/Longest tokens.
func (p *Pieces) Longest() int { return max(p.longest, 1) }
